"""Which rows of which fields lie in which stored batch (structured_object_store), by partition and key.

A put stores a batch, a *fragment*, and tells the catalog that row i of it is key i. Later puts of the same keys take fields over;
a read asks for keys and fields and learns from which fragments, and from which rows there, they come.

DataProtoCatalog is the index: plain data, no input or output, one caller at a time (an actor, say). It counts what still points
into each fragment. A *managed* fragment that nothing points to and nobody reads becomes retired: its handle is given out for removal
until ack_retired() says that it is gone. DataProtoCatalogTransfer is what a process holds: it moves the bytes, calls the index
wherever that is, and removes what is retired. Its calls may fail on the way, so each publication has a name and is said again
until it is known to have arrived, and nothing is removed before.
"""
from __future__ import annotations

import copy
import logging
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

logger = logging.getLogger(__name__)


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} is a string with at least one character, not {value!r}")
    return value


def _names(values: Any, what: str) -> tuple[str, ...]:
    names = () if isinstance(values, str) else tuple(values)
    if not names or not all(isinstance(name, str) and name for name in names) or len(set(names)) != len(names):
        raise ValueError(f"{what} are different strings, at least one and none empty, not {values!r}")
    return names


def _tags(tags: Any, count: int) -> Optional[list[dict[str, Any]]]:
    if tags is None:
        return None
    if len(tags) != count:
        raise ValueError(f"{len(tags)} tags are not one for each of {count} keys")
    if not all(isinstance(tag, Mapping) for tag in tags):
        raise TypeError("tags are mappings")
    return [copy.deepcopy(dict(tag)) for tag in tags]


def _handle(handle: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """(reference, the handle as export_ref() writes it): two handles of the same batch are then equal."""
    from mooncake.structured_object_store import export_dataproto_ref, import_dataproto_ref

    ref = import_dataproto_ref(handle)
    return ref, export_dataproto_ref(ref)


class _Fragment:
    """A stored batch. Fields of keys point into it (`uses`), pinned reads hold it (`readers`)."""

    def __init__(self, handle: dict[str, Any], managed: bool) -> None:
        self.handle, self.managed = handle, managed
        self.uses = self.readers = 0


class _Row:
    """A key: its tag, and where each of its fields lies, as (fragment id, row)."""

    def __init__(self) -> None:
        self.tag: dict[str, Any] = {}
        self.fields: dict[str, tuple[str, int]] = {}


def _fields_of(rows: Sequence[_Row]) -> list[str]:
    return list(dict.fromkeys(field for row in rows for field in row.fields))


class DataProtoCatalog:
    """The index. Everything that it takes and gives is plain data, and a copy."""

    def __init__(self) -> None:
        self._partitions: dict[str, dict[str, _Row]] = {}
        self._fragments: dict[str, _Fragment] = {}
        self._retired: dict[str, dict[str, Any]] = {}
        self._answers: dict[str, dict[str, Any]] = {}  # Of publications that nobody has acknowledged.
        self._pins: dict[int, tuple[str, ...]] = {}
        self._last_pin = 0
        self._drained = False

    # ---- writing ----

    def update(self, partition: str, keys: Sequence[str], *, tags: Optional[Sequence[Mapping[str, Any]]] = None,
               handle: Optional[Mapping[str, Any]] = None) -> dict[str, Any]:
        """Merges tags into those of the keys, and makes row i of the batch key i. Who calls this removes the batch himself."""
        return self._update(partition, keys, tags, handle, False)

    def publish(self, operation_id: str, partition: str, keys: Sequence[str], *,
                tags: Optional[Sequence[Mapping[str, Any]]] = None,
                handle: Optional[Mapping[str, Any]] = None) -> dict[str, Any]:
        """The same for a batch that the catalog manages. Said again it does nothing and answers as before."""
        return self._once(operation_id, lambda: self._update(partition, keys, tags, handle, handle is not None))

    def publish_append(self, operation_id: str, fragment_id: str, partition: str, keys: Sequence[str], *,
                       previous_handle: Mapping[str, Any], handle: Mapping[str, Any]) -> dict[str, Any]:
        """A managed batch has become one with more fields. Somebody may have been faster: the answer then is
        {"append_rejected": why}, and the new batch is of no use."""
        return self._once(operation_id, lambda: self._append(fragment_id, partition, keys, previous_handle, handle))

    def ack_publication(self, operation_id: str) -> None:
        """The publisher knows the answer: it need not be kept."""
        self._answers.pop(_text(operation_id, "operation_id"), None)

    def _once(self, operation_id: str, do: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        if _text(operation_id, "operation_id") not in self._answers:
            self._answers[operation_id] = do()
        return copy.deepcopy(self._answers[operation_id])

    def _update(self, partition, keys, tags, handle, managed) -> dict[str, Any]:
        if self._drained:
            raise RuntimeError("the DataProto catalog is drained")
        partition, keys = _text(partition, "partition"), _names(keys, "keys")
        tags = _tags(tags, len(keys))
        if tags is None and handle is None:
            raise ValueError("an update has tags or the handle of a DataProto batch")
        # All is checked before anything changes.
        fragment_id, fields = self._admit(handle, len(keys), managed) if handle is not None else (None, ())
        entries = self._partitions.setdefault(partition, {})
        rows = [entries.setdefault(key, _Row()) for key in keys]
        for index, row in enumerate(rows):
            row.tag.update(tags[index] if tags is not None else ())
            self._point(row, fields, fragment_id, index)
        return self._answer(keys, rows)

    def _admit(self, handle, count, managed) -> tuple[str, Sequence[str]]:
        ref, handle = _handle(handle)
        if len(ref.stage_refs) != 1:
            raise ValueError(f"a batch of the catalog has one stage, not {len(ref.stage_refs)}")
        fragment_id = _text(next(iter(ref.stage_refs.values())).manifest_key, "manifest_key")
        if ref.batch_size != count:
            raise ValueError(f"a batch of {ref.batch_size} rows is not one of {count} keys")
        fields = _names(ref.field_index, "fields of a batch")
        known = self._fragments.get(fragment_id)
        if known is not None and known.handle != handle:
            raise ValueError(f"another batch is already called {fragment_id!r}")
        if known is not None and known.managed != managed:
            raise ValueError(f"the batch {fragment_id!r} is {'' if known.managed else 'not '}managed already")
        if fragment_id in self._retired:
            raise ValueError(f"the batch {fragment_id!r} is about to be removed")
        self._fragments.setdefault(fragment_id, _Fragment(handle, managed))
        return fragment_id, fields

    def _append(self, fragment_id, partition, keys, previous_handle, handle) -> dict[str, Any]:
        if self._drained:
            return {"append_rejected": "the DataProto catalog is drained"}
        fragment_id, partition, keys = _text(fragment_id, "fragment_id"), _text(partition, "partition"), _names(keys, "keys")
        (before, previous_handle), (after, handle) = _handle(previous_handle), _handle(handle)
        known = self._fragments.get(fragment_id)
        entries = self._partitions.get(partition, {})
        if known is None or not known.managed or known.handle != previous_handle:
            return {"append_rejected": f"the batch {fragment_id!r} is no longer what was appended to"}
        if (not before.batch_size == after.batch_size == len(keys) or not before.partition == after.partition == partition
                or before._storage_group_id != after._storage_group_id):
            return {"append_rejected": f"the appended batch has not the rows, partition and group of {fragment_id!r}"}
        if any(after.field_index.get(name) != place for name, place in before.field_index.items()):
            return {"append_rejected": f"the appended batch has not the fields of {fragment_id!r} as they were"}
        missing = [key for key in keys if key not in entries]
        if missing:
            return {"append_rejected": f"the partition {partition!r} has no keys {missing}"}
        known.handle = handle
        rows = [entries[key] for key in keys]
        for index, row in enumerate(rows):
            self._point(row, [name for name in after.field_index if name not in before.field_index], fragment_id, index)
        return self._answer(keys, rows)

    def _point(self, row: _Row, fields: Sequence[str], fragment_id: Optional[str], index: int) -> None:
        for field in fields:
            self._fragments[fragment_id].uses += 1  # First: the field may have pointed there already.
            if field in row.fields:
                self._drop(row.fields[field][0])
            row.fields[field] = fragment_id, index

    def _answer(self, keys: Sequence[str], rows: Sequence[_Row]) -> dict[str, Any]:
        return {"keys": list(keys), "tags": [copy.deepcopy(row.tag) for row in rows], "fields": _fields_of(rows),
                **self._retired_handles()}

    # ---- reading ----

    def resolve(self, partition: str, keys: Sequence[str], fields: Optional[Sequence[str]] = None, *,
                pin: bool = False) -> dict[str, Any]:
        """Where the fields (all of the keys' without a choice) lie: `field_groups` are fields with the same `locations`, one
        (fragment id, row) for each key, and `handles` are the fragments'. A pin keeps them until release_read(read_token)."""
        partition, keys = _text(partition, "partition"), _names(keys, "keys")
        entries = self._partitions.get(partition, {})
        missing = [key for key in keys if key not in entries]
        if missing:
            raise ValueError(f"the partition {partition!r} has no keys {missing}")
        rows = [entries[key] for key in keys]
        names = _fields_of(rows) if fields is None else list(_names(fields, "fields"))
        if not names:
            raise ValueError("the keys have no fields")
        for key, row in zip(keys, rows):
            absent = [name for name in names if name not in row.fields]
            if absent:
                raise ValueError(f"the key {key!r} has no fields {absent} yet")
        groups: dict[tuple[tuple[str, int], ...], list[str]] = {}
        for name in names:
            groups.setdefault(tuple(row.fields[name] for row in rows), []).append(name)
        used = list(dict.fromkeys(fragment_id for places in groups for fragment_id, _ in places))
        handles = {fragment_id: copy.deepcopy(self._fragments[fragment_id].handle) for fragment_id in used}
        result = {"keys": list(keys), "tags": [copy.deepcopy(row.tag) for row in rows], "fields": names,
                  "field_groups": [{"fields": group, "locations": list(places)} for places, group in groups.items()],
                  "handles": handles, "meta_info": self._meta_info(handles)}
        if pin:
            self._last_pin += 1
            self._pins[self._last_pin] = tuple(used)
            for fragment_id in used:
                self._fragments[fragment_id].readers += 1
            result["read_token"] = self._last_pin
        return result

    @staticmethod
    def _meta_info(handles: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for handle in handles.values():
            for name, value in handle["meta_info"].items():
                if merged.setdefault(name, copy.deepcopy(value)) != value:
                    raise ValueError(f"batches disagree on the meta_info {name!r}")
        return merged

    def release_read(self, token: int) -> dict[str, Any]:
        """Ends a pin, once."""
        for fragment_id in self._pins.pop(token, ()):
            self._fragments[fragment_id].readers -= 1
            self._retire_unused(fragment_id)
        return self._retired_handles()

    def list(self, partition: Optional[str] = None) -> dict[str, dict[str, Any]]:
        """The tags, by partition and key."""
        wanted = self._partitions if partition is None else [_text(partition, "partition")]
        return {name: {key: copy.deepcopy(row.tag) for key, row in self._partitions[name].items()}
                for name in wanted if name in self._partitions}

    # ---- removing ----

    def remove(self, partition: str, keys: Sequence[str]) -> dict[str, Any]:
        """Forgets keys; those that are not there are forgotten already."""
        entries = self._partitions.get(_text(partition, "partition"), {})
        for key in _names(keys, "keys"):
            row = entries.pop(key, None)
            for fragment_id, _ in row.fields.values() if row else ():
                self._drop(fragment_id)
        if not entries:
            self._partitions.pop(partition, None)
        return self._retired_handles()

    def drain(self) -> dict[str, Any]:
        """The end: everything is forgotten, all managed batches are retired, and no update is taken any more."""
        if self._pins:
            raise RuntimeError(f"the DataProto catalog has {len(self._pins)} reads that hold it")
        self._retired.update((fragment_id, one.handle) for fragment_id, one in self._fragments.items() if one.managed)
        self._partitions.clear()
        self._fragments.clear()
        self._answers.clear()
        self._drained = True
        return self._retired_handles()

    def ack_retired(self, handles: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """These batches are gone from the store. Others are passed over; but not one that only has a retired one's name."""
        for handle in handles:
            ref, handle = _handle(handle)
            found = next((name for name, retired in self._retired.items() if retired == handle), None)
            if found is None and any(len(ref.stage_refs) == 1 and one.manifest_key in self._retired
                                     for one in ref.stage_refs.values()):
                raise ValueError("the handle is not the retired batch of that name")
            self._retired.pop(found, None)
        return self._retired_handles()

    def _drop(self, fragment_id: str) -> None:
        self._fragments[fragment_id].uses -= 1
        self._retire_unused(fragment_id)

    def _retire_unused(self, fragment_id: str) -> None:
        fragment = self._fragments[fragment_id]
        if not fragment.uses and not fragment.readers:
            del self._fragments[fragment_id]
            if fragment.managed:
                self._retired[fragment_id] = fragment.handle

    def _retired_handles(self) -> dict[str, Any]:
        return {"retired_handles": [copy.deepcopy(handle) for handle in self._retired.values()]}


class _Later:
    """Work that failed and is to be done again before anything else of its kind."""

    def __init__(self, what: str, do: Callable[[Any], Any]) -> None:
        self._what, self._do = what, do
        self._items: list[Any] = []
        self._lock = threading.Lock()

    def add(self, item: Any) -> None:
        with self._lock:
            self._items.append(item)

    def run(self, more: Sequence[Any] = (), attempts: int = 1, strict: bool = False) -> None:
        """Does what is due, and `more`. What fails is due again; with `strict` it is a RuntimeError."""
        with self._lock:
            due, self._items = [*self._items, *more], []
        for _ in range(attempts):
            due = [item for item in due if not self._done(item)]
        with self._lock:
            self._items += due
        if strict and due:
            raise RuntimeError(f"cannot {self._what}: {len(due)} left")

    def _done(self, item: Any) -> bool:
        try:
            self._do(item)
        except Exception:
            logger.exception("cannot %s", self._what)
            return False
        return True


class DataProtoCatalogTransfer:
    """`transfer` is a MooncakeBundleTransfer; `catalog_call(method, *arguments, **keywords)` calls a DataProtoCatalog, wherever
    that is."""

    _RESULTS_ATTR = "_mooncake_catalog_results"

    def __init__(self, transfer: Any, catalog_call: Callable[..., Any]) -> None:
        self.transfer = transfer
        self._call = catalog_call
        self._publications = _Later("publish a stored batch", self._publish)
        self._acknowledgements = _Later("acknowledge a publication", lambda operation: self._call("ack_publication", operation))
        self._results = _Later("release a buffer", lambda result: self.transfer.release_result(result))

    def put(self, data: Any, *, partition: str, keys: Sequence[str], tags: Optional[Sequence[Mapping[str, Any]]] = None,
            **put_kwargs: Any) -> dict[str, Any]:
        """Stores a batch (or, without data, only tags) and publishes it. When the catalog cannot be reached twice, the error is
        the caller's, and the next call publishes the batch before it does anything else."""
        self._catch_up()
        partition, keys = _text(partition, "partition"), _names(keys, "keys")
        tags = _tags(tags, len(keys))
        if data is None and tags is None:
            raise ValueError("a put has tags or data")
        handle = None
        if data is not None:
            self._check_rows(data, keys)
            handle = self._exported(self.transfer.put(data, type="dataproto", partition=partition, **put_kwargs))
        return self._publish_or_keep("publish", (partition, keys), {"tags": tags, "handle": handle})

    def append(self, fragment_id: str, handle: Mapping[str, Any], data: Any, *, partition: str, keys: Sequence[str], stage: str,
               **append_kwargs: Any) -> dict[str, Any]:
        """Adds fields to a batch that put() made, and whose handle resolve() gave. ValueError when another append was faster."""
        self._catch_up()
        fragment_id, partition, keys = _text(fragment_id, "fragment_id"), _text(partition, "partition"), _names(keys, "keys")
        if append_kwargs.get("overwrite"):
            raise ValueError("an append adds fields; it does not overwrite")
        self._check_rows(data, keys)
        before, previous = _handle(handle)
        if before.partition != partition:
            raise ValueError(f"the batch is of the partition {before.partition!r}, not {partition!r}")
        plan = self._call("resolve", partition, keys, list(before.field_index))
        if plan["handles"].get(fragment_id) != previous:
            raise ValueError(f"the batch {fragment_id!r} is no longer what is appended to")
        appended = self._exported(self.transfer.append_dataproto_fields(previous, data, stage=stage, **append_kwargs))
        result = self._publish_or_keep("publish_append", (fragment_id, partition, keys),
                                       {"previous_handle": previous, "handle": appended})
        if result.get("append_rejected"):
            raise ValueError(result["append_rejected"])
        return result

    @staticmethod
    def _exported(ref: Any) -> dict[str, Any]:
        from mooncake.structured_object_store import export_dataproto_ref

        return export_dataproto_ref(ref)

    @staticmethod
    def _check_rows(data: Any, keys: Sequence[str]) -> None:
        if len(data) != len(keys):
            raise ValueError(f"a batch of {len(data)} rows is not one of {len(keys)} keys")

    def _catch_up(self) -> None:
        self._acknowledgements.run()
        self._publications.run(strict=True)

    def _publish_or_keep(self, method: str, arguments: tuple, keywords: dict[str, Any]) -> dict[str, Any]:
        publication = {"operation": uuid.uuid4().hex, "method": method, "arguments": arguments, "keywords": keywords}
        try:
            return self._publish(publication)
        except Exception:
            logger.exception("publishing a stored batch once more")
        try:
            return self._publish(publication)
        except Exception:
            self._publications.add(publication)
            raise

    def _publish(self, publication: Mapping[str, Any]) -> dict[str, Any]:
        keywords = publication["keywords"]
        result = self._call(publication["method"], publication["operation"], *publication["arguments"], **keywords)
        if result.get("append_rejected"):
            self.transfer.cleanup_dataproto_append(keywords["previous_handle"], keywords["handle"])
        self._remove_retired(result)
        self._acknowledgements.run([publication["operation"]])
        return result

    def _remove_retired(self, result: Mapping[str, Any], strict: bool = False) -> None:
        """What cannot be removed stays retired, and the next answer names it again."""
        handles = result.get("retired_handles", ())
        removed = []
        for handle in handles:
            try:
                self.transfer.cleanup_dataproto(handle)
                removed.append(handle)
            except Exception:
                logger.exception("cannot remove a retired batch")
        if removed:
            try:
                self._call("ack_retired", removed)
            except Exception:
                logger.exception("cannot tell that retired batches are gone")
                if strict:
                    raise
        if strict and len(removed) < len(handles):
            raise RuntimeError(f"{len(handles) - len(removed)} retired batches cannot be removed")

    def resolve(self, partition: str, keys: Sequence[str], fields: Optional[Sequence[str]] = None) -> dict[str, Any]:
        """Pins what it answers: release_read(result["read_token"]) afterwards."""
        return self._call("resolve", partition, keys, fields, pin=True)

    def release_read(self, token: int) -> None:
        self._remove_retired(self._call("release_read", token))

    def attach_results(self, output: Any, results: Sequence[Any]) -> None:
        """What transfer.get() gave for `output` is released with it."""
        setattr(output, self._RESULTS_ATTR, list(results))

    def release_result(self, output: Any) -> None:
        results = getattr(output, self._RESULTS_ATTR, ())
        setattr(output, self._RESULTS_ATTR, [])
        self.discard_results(results)

    def discard_results(self, results: Sequence[Any], *, strict: bool = False) -> None:
        self._results.run(results, attempts=2, strict=strict)

    def list(self, partition: Optional[str] = None) -> dict[str, dict[str, Any]]:
        return self._call("list", partition)

    def remove(self, partition: str, keys: Sequence[str]) -> None:
        self._remove_retired(self._call("remove", partition, keys))

    def drain(self) -> None:
        """Empties the catalog and removes every managed batch; tried twice, then the error is the caller's."""
        try:
            self._drain()
        except Exception:
            logger.exception("draining the DataProto catalog once more")
            self._drain()

    def _drain(self) -> None:
        self._publications.run(strict=True)
        self._remove_retired(self._call("drain"), strict=True)

    def close(self) -> None:
        """RuntimeError when something is left that could not be done."""
        self.discard_results((), strict=True)
        self._publications.run(strict=True)
        self._acknowledgements.run(strict=True)
