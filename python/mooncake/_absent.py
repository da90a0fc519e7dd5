"""Modules of upstream's package that this one does not have. Importing one is an ImportError that says why, as upstream's modules do
that their build left out; docs/compatibility.md has the whole of it."""
_GPU = "expert parallelism and process groups for torch need its GPU kernels; Mooncake in C has the store and the Transfer Engine"
_NOF = "it prepares NVMe-oF segments, and a master of this build takes none (-1012); SSD offload of a node needs no SPDK"
REASONS = {"ep": _GPU, "pg": _GPU, "mooncake_ep_buffer": _GPU, "mooncake_elastic_buffer": _GPU,
           "mooncake_ssd_register": _NOF, "mooncake_ssd_unregister": _NOF, "spdk_tgt_create": _NOF}


def refuse(module: str) -> None:
    reason = REASONS[module.rsplit(".", 1)[-1]]
    raise ImportError(f"{module} is not in this package: {reason} (docs/compatibility.md)", name=module)
