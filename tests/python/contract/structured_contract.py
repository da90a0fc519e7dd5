"""Objects field by field (mooncake.structured_object_store): every kind of column, rows, slices, appended stages, what is refused;
over a store of a dict, and over a real one."""
import json
import os
import time
import unittest

from base import MIB, new_store, ours_only

try:
    import numpy as np
    import torch
    from mooncake import structured_object_store as so
except ImportError:
    np = None


class DictStore:
    """The least that a store has to be."""

    def __init__(self):
        self.data, self.refuse = {}, None

    def put(self, key, value, config=None):
        if self.refuse and self.refuse in key:
            return -200
        self.data[key] = bytes(value)
        return 0

    def get(self, key):
        return self.data.get(key, b"")

    def remove(self, key, force=False):
        return 0 if self.data.pop(key, None) is not None else -704

    def is_exist(self, key):
        return int(key in self.data)


class Batch:
    def __init__(self, batch=None, non_tensor_batch=None, meta_info=None):
        self.batch, self.non_tensor_batch, self.meta_info = batch, non_tensor_batch or {}, meta_info or {}


COLUMNS = {} if np is None else {
    "str": ["x", "yy\u00e9", None], "bytes": [b"1", b"", b"22"], "int": [1, None, 3], "float": [1.5, 2.5, 3.5],
    "bool": [True, False, None], "dict": [{"q": 1}, {"q": 2, "z": [1, "a", None]}, {}], "strings": [["a"], ["b", "c"], []],
    "numbers": [[1, 2], [3], [4, 5, 6]], "tensors": [torch.ones(2), torch.arange(6.).reshape(2, 3), torch.ones(1)],
    "arrays": [np.ones((2, 2)), np.arange(3.), np.zeros(1)],
    "nested": [{"a": torch.ones(1), "n": {"s": "x"}}, None, {"a": None, "n": {"s": "y", "v": np.arange(2)}}]}


def plain(value):
    """For comparing: arrays and tensors as lists with their dtype."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return [plain(item) for item in value] if value.dtype == object else (str(value.dtype), value.tolist())
    return (str(value.dtype), value.tolist()) if isinstance(value, torch.Tensor) else value


@unittest.skipIf(np is None, "numpy or torch is not installed")
class Structured(unittest.TestCase):
    def setUp(self):
        self.store = DictStore()
        self.transfer = so.MooncakeBundleTransfer(self.store)

    def same(self, got, wanted):
        self.assertEqual(plain(got), plain(wanted))

    def test_bundles(self):
        data = np.arange(1000, dtype=np.int32)
        ref = self.transfer.put_bundle(b"meta", {"a": b"hello", "b": data, "e": b""}, chunk_bytes=1024)
        manifest = json.loads(self.store.data[ref.manifest_key])
        self.assertEqual((manifest["version"], manifest["layout"]), (1, "bundle"))
        self.assertEqual([chunk["bytes"] for chunk in manifest["buffers"]["b"]["chunks"]], [1024, 1024, 1024, 928])
        self.assertEqual(b"".join(self.store.data[chunk["key"]] for chunk in manifest["buffers"]["b"]["chunks"]), data.tobytes())
        self.assertEqual(manifest["buffers"]["e"]["chunks"], [])
        self.transfer.remove_bundle(ref)
        self.transfer.remove_bundle(ref)
        self.assertEqual(self.store.data, {})
        for bad in ({"partition": ""}, {"chunk_bytes": 0}):
            with self.assertRaises(ValueError):
                self.transfer.put_bundle(b"m", {"a": b"x"}, **bad)
        for name in ("", "a/b"):
            with self.assertRaises(ValueError):
                self.transfer.put_bundle(b"m", {name: b"x"})
        with self.assertRaises(TypeError):
            self.transfer.put_bundle("text", {})

    def test_a_failed_put_leaves_nothing(self):
        for refuse in ("/buffer/b", "/meta", "/manifest"):
            self.store.refuse = refuse
            with self.assertRaisesRegex(RuntimeError, "put failed for .*: -200"):
                self.transfer.put_bundle(b"meta", {"a": b"x", "b": b"y"})
            self.assertEqual(self.store.data, {})

    def test_objects(self):
        members = {"x": np.arange(12).reshape(3, 4), "t": torch.arange(12).reshape(3, 4), "raw": b"bytes",
                   "half": torch.ones(2, dtype=torch.bfloat16), "scalar": torch.tensor(3), "none": np.zeros((0, 2))}
        ref = self.transfer.put_object(members)
        self.same(self.transfer.get_object(ref), members)
        self.same(self.transfer.get_object({"manifest_key": ref.manifest_key}), members)
        for value in (torch.arange(4), np.arange(4), b"x"):
            self.same(self.transfer.get_object(self.transfer.put_object(value)), value)
        spec = self.transfer.read_spec(ref)
        got = self.transfer.materialize(spec.select_members(["x", "t"]).slice_member("x", 0, 1, 3).slice_member("t", 0, 0, 2))
        self.same(got.objects, {"x": members["x"][1:3], "t": members["t"][:2]})
        self.same(self.transfer.materialize(spec.select_members(["x"]).slice_member("x", 0, 0, 3, 2)).objects["x"],
                  members["x"][::2])
        for wrong, error in ((spec.select_members(["zz"]), KeyError), (spec.slice_member("x", 1, 1, 3), ValueError),
                             (spec.slice_member("t", 0, 0, 3, 2), ValueError)):
            with self.assertRaises(error):
                self.transfer.materialize(wrong)
        with self.assertRaises(TypeError):
            self.transfer.put_object(5)

    def test_destinations(self):
        array, tensor = np.arange(12).reshape(3, 4), torch.arange(6.)
        ref = self.transfer.put_structured_object(so.StructuredObjectPayload({"k": 1}, {"x": array, "t": tensor}))
        spec, out = self.transfer.read_spec(ref), np.zeros((3, 4), np.int64)
        got = self.transfer.materialize_into(spec.select_members(["x"]), {"x": out})
        self.assertEqual(got.metadata["k"], 1)
        self.same(out, array)
        with self.assertRaisesRegex(ValueError, "shape mismatch"):
            self.transfer.materialize_into(spec.select_members(["x"]), {"x": np.zeros((2, 4), np.int64)})
        with self.assertRaises(ValueError):
            self.transfer.materialize_into(spec.select_members(["t"]), {"t": torch.zeros(6)})
        room = np.zeros(304 + 24, np.uint8)
        got = self.transfer.materialize_into(spec.select_members(["t"]), {"t": so.tensor_object_buffer(
            room.ctypes.data, room.nbytes, room)})
        self.same(room[304:].view(np.float32), tensor.numpy())

    @ours_only("raw_destination of this release raises")
    def test_raw_destinations(self):
        tensor, raw = torch.arange(6.), np.zeros(24, np.uint8)
        spec = self.transfer.read_spec(self.transfer.put_object({"t": tensor}))
        got = self.transfer.materialize_into(spec, {"t": so.raw_destination(raw.ctypes.data, raw.nbytes, raw)})
        self.same(got.objects["t"], tensor)
        self.same(raw.view(np.float32), tensor.numpy())
        with self.assertRaises(ValueError):
            self.transfer.materialize_into(spec, {"t": so.raw_destination(raw.ctypes.data, 23)})

    def test_every_kind_of_column(self):
        for name, rows in COLUMNS.items():
            with self.subTest(name):
                ref = self.transfer.put({"c": rows}, type="dict")
                self.same(self.transfer.get(ref, type="dict"), {"c": rows})
                handle = json.loads(json.dumps(so.export_ref(ref)))
                self.same(self.transfer.get(handle, type="dict", rows=slice(1, 3)), {"c": rows[1:3]})
        for rows in ([1, "a", None], [None, None], [object(), object()]):
            with self.assertRaises(ValueError):
                self.transfer.put({"c": rows}, type="dict")

    def test_a_batch(self):
        ids, names = torch.arange(6).reshape(3, 2), np.array(["a", "bc", None], dtype=object)
        ref = self.transfer.put(Batch({"ids": ids}, {"names": names, "n": np.arange(3)}, {"step": 4, "x": [1, 2]}))
        self.assertEqual((ref.batch_size, ref.field_index["ids"].section), (3, "batch"))
        whole = {"batch": {"ids": ids}, "non_tensor_batch": {"names": names, "n": np.arange(3)}, "meta_info": {"step": 4, "x": [1, 2]}}
        self.same(self.transfer.get(ref), whole)
        self.same(self.transfer.get(ref, data_cls=Batch).non_tensor_batch["names"], names)
        got = self.transfer.get(ref, fields=["ids"], meta_info_keys=[])
        self.same(got, {"batch": {"ids": ids}, "non_tensor_batch": {}, "meta_info": {}})
        self.same(self.transfer.get(ref, batch_fields=["ids"])["non_tensor_batch"], {})
        self.same(self.transfer.get(ref, rows=slice(-1, None))["batch"]["ids"], ids[2:])
        self.assertRaises(KeyError, self.transfer.get, ref, fields=["nope"])
        self.assertRaises(IndexError, self.transfer.get, ref, rows=[5])
        flat = self.transfer.get(ref, type="dict")
        self.same((flat["step"], flat["names"], flat["ids"]), (4, ["a", "bc", None], ids))
        self.assertRaises(ValueError, so.import_ref, {"type": "x"})
        self.assertFalse(so.is_dataproto_ref_handle({"type": "x"}))
        self.assertRaises(ValueError, self.transfer.put, {"a": torch.ones(2), "b": torch.ones(3)}, type="dict")
        view = self.transfer.dataproto_manifest_view(ref)
        self.assertEqual((set(view["batch_fields"]), set(view["non_tensor_fields"])), ({"ids"}, {"names", "n"}))
        self.assertEqual(view["non_tensor_fields"]["names"]["spec"]["codec"], "utf8_ragged")
        self.transfer.cleanup_dataproto(ref)
        self.assertEqual(self.store.data, {})
        with self.assertRaises(RuntimeError):
            self.transfer.get(ref)

    @ours_only("a store that has ranges is needed for rows in no order")
    def test_scattered_rows(self):
        rows = {"t": torch.arange(10), "s": [str(i) for i in range(10)]}
        got = self.transfer.get(self.transfer.put(rows, type="dict"), type="dict", rows=[7, 2, -1])
        self.same(got, {"t": torch.tensor([7, 2, 9]), "s": ["7", "2", "9"]})

    def test_appended_fields(self):
        first = self.transfer.put(Batch({"ids": torch.arange(3)}, None, {"step": 4}))
        kept = set(self.store.data)
        other = self.transfer.append_dataproto_fields(first, Batch({"more": torch.ones(3)}, None, {"z": 1}), stage="s2")
        self.same(self.transfer.get(other)["batch"], {"ids": torch.arange(3), "more": torch.ones(3)})
        self.assertEqual(self.transfer.get(other)["meta_info"], {"step": 4, "z": 1})
        self.same(self.transfer.get(first)["batch"], {"ids": torch.arange(3)})
        self.assertRaises(ValueError, self.transfer.append_dataproto_fields, first, Batch({"ids": torch.ones(3)}), stage="s3")
        self.assertRaises(ValueError, self.transfer.append_dataproto_fields, first, Batch({"q": torch.ones(2)}), stage="s3")
        self.transfer.cleanup_dataproto_append(first, other)
        self.assertEqual(set(self.store.data), kept)
        same_stage = self.transfer.append_dataproto_fields(first, Batch({"q": torch.ones(3)}), stage="default")
        self.same(self.transfer.get(so.export_ref(same_stage))["batch"], {"ids": torch.arange(3), "q": torch.ones(3)})
        again = self.transfer.append_dataproto_fields(first, Batch({"ids": torch.zeros(3)}), stage="s4", overwrite=True)
        self.same(self.transfer.get(again)["batch"], {"ids": torch.zeros(3)})
        self.transfer.cleanup_dataproto(same_stage)
        self.assertNotIn(first.stage_refs["default"].manifest_key, self.store.data)

    def test_a_schema_names_the_codec(self):
        ref = self.transfer.put({"v": ["a", "b"]}, type="dict", field_schemas={"v": so.FieldSchema("msgpack_ragged")})
        self.assertEqual(ref.encoded_non_tensor["v"]["codec"], "msgpack_ragged")
        self.assertEqual(self.transfer.get(ref, type="dict"), {"v": ["a", "b"]})
        with self.assertRaisesRegex(ValueError, "nope"):
            self.transfer.put({"v": ["a"]}, type="dict", field_schemas={"v": so.FieldSchema("nope")})


@unittest.skipIf(np is None, "numpy or torch is not installed")
class InAStore(unittest.TestCase):
    """Over the real thing; and what the other implementation wrote (test_contract.py hands it over) is read."""

    def test_all_of_it(self):
        store = new_store(segment=256 * MIB, buffer=256 * MIB)
        self.addCleanup(store.close)
        transfer = so.MooncakeBundleTransfer(store)
        large = torch.arange(5 << 20, dtype=torch.float32).reshape(-1, 1 << 10)
        data = {"large": large, "half": torch.ones(5 << 10, 3, dtype=torch.bfloat16), **{
            name: (rows * (5 << 10))[:5 << 10] for name, rows in COLUMNS.items() if name != "nested"}, "step": 7}
        ref = transfer.put(data, type="dict", chunk_bytes=3 << 20)
        got = transfer.get(so.export_ref(ref), type="dict")
        self.assertTrue(torch.equal(got.pop("large"), large) and torch.equal(got.pop("half"), data["half"]))
        self.assertEqual(plain(got), plain({name: value for name, value in data.items() if name not in ("large", "half")}))
        part = transfer.get(ref, type="dict", rows=slice(1000, 3000))
        self.assertTrue(torch.equal(part["large"], large[1000:3000]))
        self.assertEqual(part["str"], data["str"][1000:3000])
        transfer.cleanup_dataproto(ref)
        self.assertEqual(store.is_exist(ref.stage_refs["default"].manifest_key), 0)

    @unittest.skipUnless(os.environ.get("MC_CONTRACT_OTHERS_OBJECTS"), "nothing is handed over")
    def test_what_the_other_side_wrote(self):
        write_objects(os.environ["MC_CONTRACT_OWN_OBJECTS"])
        deadline = time.monotonic() + 300  # The other side runs beside us.
        while not os.path.exists(os.environ["MC_CONTRACT_OTHERS_OBJECTS"]) and time.monotonic() < deadline:
            time.sleep(0.05)
        with open(os.environ["MC_CONTRACT_OTHERS_OBJECTS"]) as file:
            handles = json.load(file)
        store = DictStore()
        store.data = {key: bytes.fromhex(value) for key, value in handles["data"].items()}
        transfer = so.MooncakeBundleTransfer(store)
        for name, rows in COLUMNS.items():
            self.assertEqual(plain(transfer.get(handles["refs"][name], type="dict")), plain({"c": rows}), name)
        self.assertEqual(plain(transfer.get(handles["refs"]["tensor"], type="dict")), plain({"t": torch.arange(1000.)}))


def write_objects(path):
    """What the other side is to read."""
    store = DictStore()
    transfer = so.MooncakeBundleTransfer(store)
    refs = {name: so.export_ref(transfer.put({"c": rows}, type="dict")) for name, rows in COLUMNS.items()}
    refs["tensor"] = so.export_ref(transfer.put({"t": torch.arange(1000.)}, type="dict", chunk_bytes=1500))
    with open(path + ".part", "w") as file:
        json.dump({"refs": refs, "data": {key: value.hex() for key, value in store.data.items()}}, file)
    os.rename(path + ".part", path)
