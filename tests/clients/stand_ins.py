"""What the drivers share: how a client's modules are imported without the GPU part of the client, and bytes to compare."""
import importlib.abc
import importlib.machinery
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


class Empty(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing


class Nothing(metaclass=Empty):
    """Any class that is named and not used."""

    def __init__(self, *_, **__):
        pass

    def __class_getitem__(cls, _):
        return cls

    def __call__(self, *arguments, **_):
        return arguments[0] if arguments and callable(arguments[0]) else self  # A decorator decorates with nothing.

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()


class StandIn(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (Nothing,), {})
        setattr(self, name, made)
        return made


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of a client of which `real` says no."""

    def __init__(self, client, real):
        self.client, self.real = client, real

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] != self.client or self.real(name):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = StandIn(spec.name)
        module.__path__ = [os.path.join(CLIENT, *spec.name.split("."))]
        return module

    def exec_module(self, module):
        pass


def all_but(real, *below):
    """The modules `real` and those below the packages `below` are the client's; what else they import of it are stand-ins, whose names
    are empty classes."""
    client = below[0].split(".")[0]
    sys.meta_path.insert(0, StandIns(client, lambda name: name in real or (name + ".").startswith(tuple(one + "." for one in below))))


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
