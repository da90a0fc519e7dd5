"""What the drivers share: how a client's modules are imported without the GPU part of the client, and bytes to compare."""
import os
import sys
import types

sys.path.append(os.environ["CLIENT_PACKAGES"])
CLIENT, MASTER, ADMIN = os.environ["MC_CLIENT"], os.environ["MC_MASTER"], os.environ["MC_MASTER_ADMIN"]


def package(name):
    """A package of the client without its __init__.py, which would import the whole engine. Modules in it are the real ones."""
    module = types.ModuleType(name)
    module.__path__ = [os.path.join(CLIENT, *name.split("."))]
    sys.modules[name] = module


def absent(name, *classes):
    """A module that only GPU code needs, with empty classes."""
    module = types.ModuleType(name)
    module.__path__ = []
    for one in classes:
        setattr(module, one, type(one, (), {}))
    sys.modules[name] = module
    return module


def random_bytes(torch, count, seed):
    return torch.randint(0, 256, (count,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


compared = 0


def same(torch, got, expected, what):
    global compared
    got, expected = got.contiguous().view(torch.uint8).flatten(), expected.contiguous().view(torch.uint8).flatten()
    assert len(got) == len(expected) > 0 and torch.equal(got, expected), what
    compared += len(got)


def finish(floor):
    assert compared >= floor, f"only {compared} bytes were compared"
    print(f"{compared} bytes compared", flush=True)
