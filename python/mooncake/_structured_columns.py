"""A column of Python values as a few flat buffers, and back: how structured_object_store keeps what is not a tensor.

A column is encoded by one codec, chosen from all its rows or named by a FieldSchema:

    ndarray         numbers, one a row            data, nulls
    utf8_ragged     strings                       data, offsets, nulls
    bytes_ragged    bytes                         data, offsets, nulls
    msgpack_ragged  what msgpack can say          data, offsets, nulls
    typed_ragged    arrays or lists of numbers    data, offsets, shapes, ndims, nulls
    ragged_tensor   tensors of any shapes         data, offsets, shapes, ndims, nulls
    structured_recursive   dicts with any of the above below them: a codec per leaf, and masks

offsets has a row more than the column. A row that is None has nulls set and no data. In a dict, `missing` says that a row's parent
is there and has no such key, and a node's `row_mask` that a row has a dict there. Names and layouts are upstream's.
"""
import dataclasses
import numbers

import numpy as np

MAX_DEPTH = 32


class _Missing:
    def __repr__(self):
        return "<MISSING>"


MISSING = _Missing()  # A key that a row's dict does not have; None is a value.


class Unsupported(ValueError):
    pass


def _msgpack():
    try:
        import msgpack
    except ImportError as error:
        raise ImportError("columns of lists and dicts need the package msgpack") from error
    return msgpack


def is_tensor(value):
    return type(value).__module__.split(".")[0] == "torch" and hasattr(value, "data_ptr")


def _present(rows):
    return [row for row in rows if row is not None]


def _nulls(rows):
    return np.fromiter((row is None for row in rows), np.bool_, len(rows))


def _is_number(value):
    return isinstance(value, (numbers.Real, np.bool_)) and not isinstance(value, np.ndarray)


def _is_numeric_array(value):
    return isinstance(value, np.ndarray) and value.dtype.kind in "biufc"


def _is_numeric_list(value):
    return isinstance(value, (list, tuple)) and all(_is_number(item) or _is_numeric_list(item) for item in value)


# ---- codecs: encode(rows) -> (metadata, members); decode(metadata, members) -> rows ----

def _numbers_encode(rows):
    present = np.asarray(_present(rows))
    if present.dtype.kind not in "biufc" or present.ndim > 1:
        raise Unsupported("unsupported structured non-tensor field: numbers too large")
    data = np.zeros(len(rows), present.dtype)
    nulls = _nulls(rows)
    data[~nulls] = present
    return {"dtype": str(data.dtype), "shape": list(data.shape)}, {"data": data, "nulls": nulls}


def _numbers_decode(metadata, members):
    return [None if null else value for value, null in zip(members["data"].tolist(), members["nulls"])]


def _pieces_encode(rows, pack):
    pieces = [b"" if row is None else pack(row) for row in rows]
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(piece) for piece in pieces], out=offsets[1:])
    return {}, {"data": b"".join(pieces), "offsets": offsets, "nulls": _nulls(rows)}


def _pieces_decode(members, unpack):
    data, offsets = memoryview(members["data"]), members["offsets"]
    base = int(offsets[0])  # Rows of a column may have been read alone.
    return [None if null else unpack(data[int(begin) - base:int(end) - base])
            for begin, end, null in zip(offsets[:-1], offsets[1:], members["nulls"])]


def _ragged_encode(rows, arrays, metadata):
    ndims = np.fromiter((0 if a is None else a.ndim for a in arrays), np.int16, len(rows))
    shapes = np.zeros((len(rows), max(1, int(ndims.max(initial=0)))), np.int64)
    offsets = np.zeros(len(rows) + 1, np.int64)
    for i, array in enumerate(arrays):
        if array is not None:
            shapes[i, :array.ndim] = array.shape
        offsets[i + 1] = offsets[i] + (0 if array is None else array.size)
    flat = [array.reshape(-1) for array in arrays if array is not None]
    data = np.concatenate(flat) if flat else np.zeros(0)
    head = {"max_ndim": shapes.shape[1], "shape_policy": "ragged", "row_format": "ndarray", "ndarray_rows": None}
    return {**head, **metadata}, {"data": data, "offsets": offsets, "shapes": shapes, "ndims": ndims, "nulls": _nulls(rows)}


def _ragged_decode(members, make):
    data, offsets = members["data"], members["offsets"]
    base, shapes = int(offsets[0]), members["shapes"].reshape(len(offsets) - 1, -1)
    rows = []
    for i, null in enumerate(members["nulls"]):
        shape = tuple(int(n) for n in shapes[i, :int(members["ndims"][i])])
        rows.append(None if null else make(data[int(offsets[i]) - base:int(offsets[i + 1]) - base].reshape(shape)))
    return rows


def _typed_encode(rows):
    lists = any(isinstance(row, (list, tuple)) for row in rows)
    arrays = [None if row is None else np.asarray(row) for row in rows]
    kinds = {array.dtype for array in arrays if array is not None}
    if any(kind.kind not in "biufc" for kind in kinds):
        raise Unsupported("unsupported structured non-tensor field: rows are not rectangular")
    kind = np.result_type(*kinds)
    arrays = [None if array is None else np.ascontiguousarray(array, kind) for array in arrays]
    return _ragged_encode(rows, arrays, {"dtype": str(kind), **({"row_format": "list"} if lists else {"physical_layout":
                                                                                                        "contiguous_flat"})})


def _typed_decode(metadata, members):
    as_lists = metadata.get("row_format") == "list"
    return _ragged_decode(members, lambda array: array.tolist() if as_lists else array.copy())


def _tensors_encode(rows):
    kinds = {row.dtype for row in _present(rows)}
    if len(kinds) != 1:
        raise Unsupported("unsupported structured non-tensor field: tensors of several dtypes")
    arrays = [None if row is None else row.detach().cpu().contiguous().numpy() for row in rows]
    return _ragged_encode(rows, arrays, {"dtype": str(kinds.pop()), "physical_layout": "contiguous_flat"})


def _tensors_decode(metadata, members):
    import torch
    return _ragged_decode(members, lambda array: torch.from_numpy(array.copy()))


CODECS = {
    "ndarray": (_numbers_encode, _numbers_decode, "numeric scalar"),
    "utf8_ragged": (lambda rows: _pieces_encode(rows, lambda s: s.encode()),
                    lambda _, members: _pieces_decode(members, lambda piece: bytes(piece).decode()), "str"),
    "bytes_ragged": (lambda rows: _pieces_encode(rows, bytes), lambda _, members: _pieces_decode(members, bytes), "bytes-like"),
    "msgpack_ragged": (lambda rows: _pieces_encode(rows, lambda row: _msgpack().packb(row, use_bin_type=True)),
                       lambda _, members: _pieces_decode(members, lambda piece: _msgpack().unpackb(
                           piece, raw=False, strict_map_key=False)), "msgpack"),
    "typed_ragged": (_typed_encode, _typed_decode, "numeric sequence"),
    "ragged_tensor": (_tensors_encode, _tensors_decode, "torch.Tensor"),
}


def choose(rows):
    """(codec, why) for the rows; raises Unsupported."""
    present = _present(rows)
    if not present:
        raise Unsupported("unsupported structured non-tensor field: all rows are null")
    for codec, fits, why in (("ragged_tensor", is_tensor, "all non-null rows are Tensor"),
                             ("ndarray", _is_number, "all rows are numeric scalar"),
                             ("utf8_ragged", lambda row: isinstance(row, str), "all rows are str"),
                             ("bytes_ragged", lambda row: isinstance(row, (bytes, bytearray, memoryview)),
                              "all rows are bytes-like"),
                             ("typed_ragged", _is_numeric_array, "all rows are numeric ndarray"),
                             ("typed_ragged", _is_numeric_list, "all rows are numeric sequences"),
                             ("msgpack_ragged", lambda row: isinstance(row, (list, tuple, dict)), "all rows are msgpack-like")):
        if all(fits(row) for row in present):
            return codec, why
    raise Unsupported("unsupported structured non-tensor field: no codec matched")


# ---- dicts with tensors or arrays somewhere below ----

@dataclasses.dataclass
class Leaf:
    path: str
    values: list  # MISSING, None or a value for each row.


@dataclasses.dataclass
class Node:
    path: str
    children: list
    missing: list
    row_mask: list  # The row has a dict here.


def infer_structure(path, values, leaves, nodes, *, _depth=0):
    """Adds the leaves and the inner nodes below a column of dicts to the two lists."""
    present = [value for value in values if value is not None and value is not MISSING]
    if not present or not all(isinstance(value, dict) for value in present):
        leaves.append(Leaf(path, list(values)))
        return
    if _depth >= MAX_DEPTH:
        raise Unsupported(f"{path}: more than {MAX_DEPTH} dicts in one another")
    children = sorted({str(key) for value in present for key in value})
    nodes.append(Node(path, children, [value is MISSING for value in values], [isinstance(value, dict) for value in values]))
    for child in children:
        column = [value.get(child, MISSING) if isinstance(value, dict) else None for value in values]
        infer_structure(f"{path}.{child}", column, leaves, nodes, _depth=_depth + 1)


def _holds_arrays(value):
    if isinstance(value, dict):
        return any(_holds_arrays(item) for item in value.values())
    return is_tensor(value) or isinstance(value, np.ndarray)


def _recursive_encode(path, rows):
    leaves, nodes, members = [], [], {}
    infer_structure(path, rows, leaves, nodes)
    described = []
    for i, node in enumerate(nodes):
        described.append({"id": i, "path": node.path, "node_type": "dict", "children": node.children,
                          "missing_payload": f"node.{i}.missing", "row_mask_payload": f"node.{i}.row_mask"})
        members[f"node.{i}.missing"] = np.asarray(node.missing, np.bool_)
        members[f"node.{i}.row_mask"] = np.asarray(node.row_mask, np.bool_)
    ends = []
    for i, leaf in enumerate(leaves):
        values = [None if value is MISSING else value for value in leaf.values]
        codec, metadata, own = encode(leaf.path, values)
        own["missing"] = np.fromiter((value is MISSING for value in leaf.values), np.bool_, len(rows))
        members.update((f"leaf.{i}.{name}", value) for name, value in own.items())
        ends.append({"id": i, "path": leaf.path, "codec": codec, "rows": len(rows), "metadata": metadata,
                     "payload_members": {name: f"leaf.{i}.{name}" for name in own}})
    metadata = {"schema_source": "inferred_from_runtime_values", "structure_version": 1, "root_path": path,
                "nodes": described, "leaves": ends}
    return "structured_recursive", metadata, members


def _recursive_decode(metadata, members):
    columns = {}  # path -> values, MISSING where the key is not
    for leaf in metadata["leaves"]:
        own = {name: members[place] for name, place in leaf["payload_members"].items()}
        values = decode(leaf["codec"], leaf["metadata"], own)
        columns[leaf["path"]] = [MISSING if missing else value for missing, value in zip(own["missing"], values)]
    for node in reversed(metadata["nodes"]):  # Children come after their parents.
        mask, missing = members[node["row_mask_payload"]], members[node["missing_payload"]]
        children = [(name, columns[f"{node['path']}.{name}"]) for name in node["children"]]
        columns[node["path"]] = [
            {name: column[i] for name, column in children if column[i] is not MISSING} if mask[i]
            else MISSING if missing[i] else None for i in range(len(mask))]
    return columns[metadata["root_path"]]


# ---- the two ends ----

def encode(path, rows, codec=None):
    """(codec, metadata, {member: ndarray or bytes}) of a column. A codec that is given is used."""
    rows = list(rows)
    if codec is not None:
        if codec not in CODECS and codec != "structured_recursive":
            raise Unsupported(f"unsupported schema codec: {codec!r}")
        why, source = "field schema", "field_schema"
    elif all(isinstance(row, dict) for row in _present(rows)) and any(_holds_arrays(row) for row in rows):
        codec = "structured_recursive"
    else:
        codec, why = choose(rows)
        source = "inferred_from_runtime_values"
    if codec == "structured_recursive":
        return _recursive_encode(path, rows)
    metadata, members = CODECS[codec][0](rows)
    return codec, {**metadata, "schema_source": source, "decision_reason": why, "normalized_type": CODECS[codec][2]}, members


def decode(codec, metadata, members):
    """The rows of a column; numeric members are ndarrays, others bytes."""
    if codec == "structured_recursive":
        return _recursive_decode(metadata, members)
    if codec not in CODECS:
        raise Unsupported(f"unknown codec {codec!r}")
    return CODECS[codec][1](metadata, members)
