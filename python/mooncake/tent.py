"""The name under which upstream's second engine is imported: here one engine serves both."""
from mooncake.engine import InnerTransferEngine, TransferEngine, TransferNotify, TransferOpcode

__all__ = ["InnerTransferEngine", "TransferEngine", "TransferNotify", "TransferOpcode"]
