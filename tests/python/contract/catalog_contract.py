"""Rows by partition and key over stored batches (mooncake.dataproto_catalog): what an index answers, when a batch may go, and what a
process does when the index cannot be reached."""
import logging
import unittest

try:
    import numpy as np
    import torch
    from mooncake import structured_object_store as so
    from mooncake.dataproto_catalog import DataProtoCatalog, DataProtoCatalogTransfer
    from structured_contract import Batch, DictStore
except ImportError:
    np = None


def handle(name, fields=("ids",), rows=2, partition="train", meta=None, stages=1, group="g"):
    """A reference to a batch that nobody stored, as JSON."""
    ref = so.MooncakeDataProtoRef(
        rows, {f"stage-{i}": so.RemoteBundleRef(f"{name}{i or ''}", {}) for i in range(stages)},
        {field: so.StructuredFieldLocation("stage-0", f"batch.{field}", "batch") for field in fields}, meta or {},
        partition=partition, _storage_group_id=group)
    return so.export_dataproto_ref(ref)


@unittest.skipIf(np is None, "numpy or torch is not installed")
class Index(unittest.TestCase):
    def setUp(self):
        self.catalog = DataProtoCatalog()

    def test_rows_and_fields(self):
        first, second = handle("first", ("ids", "mask")), handle("second", ("reward",), meta={"step": 1})
        answer = self.catalog.update("train", ["a", "b"], tags=[{"x": 1}, {}], handle=first)
        self.assertEqual(answer, {"keys": ["a", "b"], "tags": [{"x": 1}, {}], "fields": ["ids", "mask"], "retired_handles": []})
        self.catalog.update("train", ["b", "a"], tags=[{"y": 2}, {"x": 3}], handle=second)
        found = self.catalog.resolve("train", ["b", "a"])
        self.assertEqual(found["field_groups"], [{"fields": ["ids", "mask"], "locations": [("first", 1), ("first", 0)]},
                                                 {"fields": ["reward"], "locations": [("second", 0), ("second", 1)]}])
        self.assertEqual((found["keys"], found["tags"], found["fields"]), (["b", "a"], [{"y": 2}, {"x": 3}],
                                                                           ["ids", "mask", "reward"]))
        self.assertEqual((found["handles"], found["meta_info"]), ({"first": first, "second": second}, {"step": 1}))
        one = self.catalog.resolve("train", ["a"], ["mask"])
        self.assertEqual((one["field_groups"], list(one["handles"])), ([{"fields": ["mask"], "locations": [("first", 0)]}], ["first"]))
        self.assertEqual(self.catalog.list(), {"train": {"a": {"x": 3}, "b": {"y": 2}}})
        self.assertEqual(self.catalog.list("other"), {})
        found["tags"][0]["y"] = found["handles"]["first"]["batch_size"] = 9
        self.assertEqual(self.catalog.resolve("train", ["b", "a"])["tags"][0], {"y": 2})
        self.assertEqual(self.catalog.resolve("train", ["b"])["handles"]["first"], first)

    def test_tags_alone(self):
        self.assertEqual(self.catalog.update("train", ["a"], tags=[{"x": 1}])["fields"], [])
        with self.assertRaises(ValueError):
            self.catalog.resolve("train", ["a"])

    def test_what_is_refused_changes_nothing(self):
        made = handle("made")
        self.catalog.update("train", ["a", "b"], handle=made)
        for keys, more in ((["a", "b"], {}), (["a"], dict(handle=made)), (["a", "a"], dict(handle=made)), ("ab", dict(handle=made)),
                           ([], dict(tags=[])), (["a"], dict(tags=[{}, {}])), (["a", ""], dict(handle=made)),
                           (["a", "b"], dict(handle=handle("made", ("other",)))), (["a", "b"], dict(handle=handle("x", ()))),
                           (["a", "b"], dict(handle=handle("x", stages=2))), (["a", "b"], dict(handle={})),
                           (["a", "b"], dict(handle=handle("x", rows=3)))):
            with self.assertRaises(ValueError, msg=str((keys, more))):
                self.catalog.update("train", keys, **more)
        with self.assertRaises(TypeError):
            self.catalog.update("train", ["a"], tags=["x"])
        for call in (lambda: self.catalog.update("", ["a"], tags=[{}]), lambda: self.catalog.resolve("train", ["c"]),
                     lambda: self.catalog.resolve("other", ["a"]), lambda: self.catalog.resolve("train", ["a"], ["none"]),
                     lambda: self.catalog.resolve("train", ["a"], []), lambda: self.catalog.resolve("train", []),
                     lambda: self.catalog.list(""), lambda: self.catalog.remove("train", "a"),
                     lambda: self.catalog.publish("", "train", ["a"], tags=[{}]), lambda: self.catalog.ack_publication(""),
                     lambda: self.catalog.publish("op", "train", ["a", "b"], handle=made)):
            with self.assertRaises(ValueError):
                call()
        self.assertEqual(self.catalog.list(), {"train": {"a": {}, "b": {}}})
        self.catalog.update("train", ["c", "d"], handle=handle("other", ("extra",), meta={"step": 1}))
        self.catalog.update("train", ["c", "d"], handle=handle("third", ("ids",), meta={"step": 2}))
        with self.assertRaises(ValueError):
            self.catalog.resolve("train", ["c"])

    def test_a_managed_batch_retires_with_its_last_use(self):
        first, second = handle("first", ("ids", "mask")), handle("second")
        answer = self.catalog.publish("op", "train", ["a", "b"], handle=first)
        self.assertEqual(self.catalog.publish("op", "train", ["z"], tags=[{}]), answer)
        self.catalog.ack_publication("op")
        self.catalog.publish("op2", "train", ["a", "b"], handle=second)
        self.assertEqual(self.catalog.resolve("train", ["a"])["field_groups"][0]["locations"], [("second", 0)])
        self.assertEqual(self.catalog.remove("train", ["a", "c"])["retired_handles"], [])
        self.assertEqual(self.catalog.remove("other", ["a"])["retired_handles"], [])
        self.assertEqual(self.catalog.remove("train", ["b"])["retired_handles"], [second, first])
        self.assertEqual(self.catalog.list(), {})
        with self.assertRaises(ValueError):
            self.catalog.publish("op3", "train", ["a", "b"], handle=first)
        with self.assertRaises(ValueError):
            self.catalog.ack_retired([handle("first")])
        self.assertEqual(self.catalog.ack_retired([first, handle("unknown")])["retired_handles"], [second])
        self.catalog.publish("op4", "train", ["a", "b"], handle=first)

    def test_what_somebody_else_put_does_not_retire(self):
        self.catalog.update("train", ["a", "b"], handle=handle("first"))
        self.assertEqual(self.catalog.remove("train", ["a", "b"])["retired_handles"], [])

    def test_reads_hold_a_batch(self):
        first = handle("first")
        self.catalog.publish("op", "train", ["a", "b"], handle=first)
        tokens = [self.catalog.resolve("train", ["a"], pin=True)["read_token"] for _ in range(2)]
        self.assertNotIn("read_token", self.catalog.resolve("train", ["a"]))
        self.assertEqual(self.catalog.remove("train", ["a", "b"])["retired_handles"], [])
        with self.assertRaises(RuntimeError):
            self.catalog.drain()
        self.assertEqual(self.catalog.release_read(tokens[0])["retired_handles"], [])
        self.assertEqual(self.catalog.release_read(tokens[0])["retired_handles"], [])
        self.assertEqual(self.catalog.release_read(tokens[1])["retired_handles"], [first])

    def test_appended_fields(self):
        first, more = handle("first"), handle("first", ("ids", "logits"))
        self.catalog.publish("op", "train", ["a", "b"], handle=first)

        def append(operation, fragment="first", keys=("a", "b"), before=first, after=more, partition="train"):
            return self.catalog.publish_append(operation, fragment, partition, list(keys), previous_handle=before, handle=after)

        for index, wrong in enumerate((dict(fragment="other"), dict(before=more), dict(keys=("a",)), dict(keys=("a", "c")),
                                       dict(after=handle("first", ("logits",))), dict(partition="other"),
                                       dict(after=handle("first", ("ids", "logits"), rows=3)),
                                       dict(after=handle("first", ("ids", "logits"), group="h")))):
            self.assertIn("append_rejected", append(f"wrong {index}", **wrong), wrong)
            self.assertIn("append_rejected", append(f"wrong {index}"))  # The answer of an operation stays.
        self.assertEqual(self.catalog.resolve("train", ["a"])["fields"], ["ids"])
        answer = append("right")
        self.assertEqual((answer["fields"], append("right", keys=("x",))), (["ids", "logits"], answer))
        self.assertIn("append_rejected", append("late"))
        self.assertEqual(self.catalog.resolve("train", ["b"])["handles"], {"first": more})
        self.assertEqual(self.catalog.remove("train", ["a", "b"])["retired_handles"], [more])
        self.catalog.drain()
        self.assertIn("append_rejected", append("drained"))

    def test_drain(self):
        first = handle("first")
        self.catalog.publish("op", "train", ["a", "b"], handle=first)
        self.catalog.update("train", ["c", "d"], handle=handle("second"))
        self.assertEqual(self.catalog.drain()["retired_handles"], [first])
        self.assertEqual(self.catalog.list(), {})
        with self.assertRaises(RuntimeError):
            self.catalog.update("train", ["a"], tags=[{}])
        self.assertEqual(self.catalog.ack_retired([first])["retired_handles"], [])


class Rows(Batch if np is not None else object):
    def __len__(self):
        return len(next(iter(self.batch.values())))


@unittest.skipIf(np is None, "numpy or torch is not installed")
class Transfer(unittest.TestCase):
    def setUp(self):
        self.store, self.catalog = DictStore(), DataProtoCatalog()
        self.fail = {}  # Method: how many calls of it fail, and whether after they were carried out.
        self.calls = []
        self.transfer = DataProtoCatalogTransfer(so.MooncakeBundleTransfer(self.store), self.call)
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)

    def call(self, method, *arguments, **keywords):
        self.calls.append(method)
        left, after = self.fail.get(method, (0, False))
        if left:
            self.fail[method] = left - 1, after
            if not after:
                raise ConnectionError(method)
        answer = getattr(self.catalog, method)(*arguments, **keywords)
        if left:
            raise ConnectionError(method)
        return answer

    def put(self, *keys, **columns):
        return self.transfer.put(Rows({name: torch.tensor(rows) for name, rows in columns.items()}), partition="train",
                                 keys=list(keys))

    def read(self, keys, fields=None):
        """The values, found as a reader finds them."""
        plan = self.transfer.resolve("train", keys, fields)
        values = {}
        for group in plan["field_groups"]:
            for (fragment, row), key in zip(group["locations"], keys):
                got = self.transfer.transfer.get(plan["handles"][fragment], fields=group["fields"], rows=[row])
                for field in group["fields"]:
                    values.setdefault(field, []).append(got["batch"][field].tolist()[0])
        self.transfer.release_read(plan["read_token"])
        return values

    def test_batches_come_and_go(self):
        answer = self.put("a", "b", ids=[1, 2], mask=[3, 4])
        self.assertEqual((answer["keys"], sorted(answer["fields"])), (["a", "b"], ["ids", "mask"]))
        self.assertEqual(self.read(["b", "a"]), {"ids": [2, 1], "mask": [4, 3]})
        self.put("b", "c", ids=[5, 6])
        self.assertEqual(self.read(["a", "b", "c"], ["ids"]), {"ids": [1, 5, 6]})
        self.transfer.put(None, partition="train", keys=["a"], tags=[{"done": True}])
        self.assertEqual(self.transfer.list("train")["train"]["a"], {"done": True})
        with self.assertRaises(ValueError):
            self.transfer.put(None, partition="train", keys=["a"])
        with self.assertRaises(ValueError):
            self.put("a", ids=[1, 2])
        self.transfer.remove("train", ["a", "b"])
        self.assertEqual(self.read(["c"]), {"ids": [6]})
        self.transfer.remove("train", ["c"])
        self.assertEqual((self.store.data, self.catalog.drain()["retired_handles"]), ({}, []))
        self.transfer.close()

    def test_a_read_keeps_what_is_removed_meanwhile(self):
        self.put("a", "b", ids=[1, 2])
        plan = self.transfer.resolve("train", ["a"])
        self.transfer.remove("train", ["a", "b"])
        fragment, row = plan["field_groups"][0]["locations"][0]
        self.assertEqual(self.transfer.transfer.get(plan["handles"][fragment], rows=[row])["batch"]["ids"].tolist(), [1])
        self.transfer.release_read(plan["read_token"])
        self.assertEqual(self.store.data, {})

    def append(self, plan, stage="more", **columns):
        fragment, one = next(iter(plan["handles"].items()))
        return self.transfer.append(fragment, one, Rows({name: torch.tensor(rows) for name, rows in columns.items()}),
                                    partition="train", keys=["a", "b"], stage=stage)

    def test_appended_fields(self):
        self.put("a", "b", ids=[1, 2])
        plan = self.catalog.resolve("train", ["a", "b"])
        self.append(plan, logits=[7, 8])
        self.assertEqual(self.read(["b", "a"]), {"ids": [2, 1], "logits": [8, 7]})
        with self.assertRaises(ValueError):
            self.append(plan, "late", late=[1, 1])
        for wrong in (dict(overwrite=True), dict(keys=["a"]), dict(partition="other")):
            fragment, one = next(iter(self.catalog.resolve("train", ["a", "b"])["handles"].items()))
            with self.assertRaises(ValueError):
                self.transfer.append(fragment, one, Rows({"x": torch.tensor([1, 2])}),
                                     **{**dict(partition="train", keys=["a", "b"], stage="x"), **wrong})
        self.transfer.remove("train", ["a", "b"])
        self.assertEqual(self.store.data, {})

    def test_a_rejected_append_takes_back_what_it_stored(self):
        self.put("a", "b", ids=[1, 2])
        plan = self.catalog.resolve("train", ["a", "b"])
        kept = set(self.store.data)
        self.catalog.resolve = lambda *_, **__: plan  # Somebody else appends between the question and the publication.
        self.append(plan, "first", logits=[7, 8])
        stored = set(self.store.data)
        with self.assertRaises(ValueError):
            self.append(plan, "second", late=[1, 1])
        self.assertEqual(set(self.store.data), stored)
        self.assertLess(kept, stored)

    def test_the_catalog_cannot_be_reached(self):
        for after in (False, True):
            with self.subTest(after=after):
                self.fail["publish"] = 1, after
                self.put("a", "b", ids=[1, 2])
                self.fail["publish"] = 2, after
                with self.assertRaises(ConnectionError):
                    self.put("c", "d", ids=[3, 4])
                self.fail["publish"] = 1, after
                with self.assertRaises(RuntimeError):
                    self.put("e", "f", ids=[5, 6])
                self.put("e", "f", ids=[5, 6])
                self.assertEqual(self.read(["a", "c", "e"]), {"ids": [1, 3, 5]})
                self.transfer.remove("train", list("abcdef"))
                self.assertEqual(self.store.data, {})

    def test_acknowledgements_are_made_up_for(self):
        self.fail["ack_publication"] = 1, False
        self.put("a", "b", ids=[1, 2])
        self.put("c", "d", ids=[1, 2])
        self.assertEqual(self.calls.count("ack_publication"), 3)
        self.fail["ack_publication"] = 1, False
        self.put("e", "f", ids=[1, 2])
        self.fail["ack_publication"] = 1, False
        with self.assertRaises(RuntimeError):
            self.transfer.close()
        self.transfer.close()

    def test_what_cannot_be_removed_stays_retired(self):
        self.put("a", "b", ids=[1, 2])
        remove, self.store.remove = self.store.remove, lambda key, force=False: -800
        self.transfer.remove("train", ["a", "b"])
        with self.assertRaises(RuntimeError):
            self.transfer.drain()
        self.store.remove = remove
        self.fail["ack_retired"] = 1, False
        self.transfer.drain()
        self.assertEqual((self.store.data, self.catalog.drain()["retired_handles"]), ({}, []))

    def test_results_are_released_with_their_output(self):
        released, broken = [], []

        def release(result):
            if broken:
                raise OSError(broken.pop())
            released.append(result)

        self.transfer.transfer.release_result = release
        output = Rows({"x": torch.tensor([1])})
        self.transfer.attach_results(output, (1, 2))
        self.transfer.release_result(output)
        self.transfer.release_result(output)
        self.assertEqual(released, [1, 2])
        broken[:] = "no", "not yet"
        self.transfer.discard_results([3])
        self.assertEqual(released, [1, 2])
        self.transfer.discard_results([], strict=True)
        self.assertEqual(released, [1, 2, 3])
        broken[:] = "no", "not yet"
        with self.assertRaises(RuntimeError):
            self.transfer.discard_results([4], strict=True)
        self.transfer.close()
        self.assertEqual(released, [1, 2, 3, 4])


if __name__ == "__main__":
    unittest.main()
