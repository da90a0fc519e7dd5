"""Plans from one parallel layout to another (mooncake.reshard): names, JSON and operations are upstream's to the byte (GOLDEN is what
both come to), a plan that is carried out gives the target its bytes, and a layout that does not add up is refused."""
import ctypes
import dataclasses
import hashlib
import itertools
import json
import os
import pickle
import random
import unittest

from base import MIB, Memory, new_store, ours_only
from mooncake.reshard import ResourceKind, contracts, geometry
from mooncake.reshard import weight as w
from mooncake.reshard.weight.storage_manifest import validate_weight_manifest_snapshot

GOLDEN = "5a9d622403c926ac6887c4bbe21286b1cac95d18ae9eb04c83965ea6dfd37107"
ITEM = 4


def descriptor(name, shape, axes, **more):
    fields = dict(tensor_id=name, global_shape=shape, dtype="float32", itemsize=ITEM, layout_fingerprint="row-major",
                  shard_dims=tuple(sorted(axis.dim for axis in axes if isinstance(axis, w.SplitAxis))), parallel_axes=tuple(axes))
    return w.TensorDescriptor(**{**fields, **more})


def cuts(extent, parts, rng=None):
    """(begin, size) of `parts` pieces; of uneven ones with `rng`."""
    marks = [extent * i // parts for i in range(parts + 1)]
    if rng:
        marks = [0, *sorted(rng.sample(range(1, extent), parts - 1)), extent]
    return [(begin, end - begin) for begin, end in zip(marks, marks[1:])]


def topology(dp=1, pp=1, ep=1, tp=1):
    ranks = [w.ParallelRank(dp=d, pp=p, ep=e, tp=t) for d, p, e, t in
             itertools.product(range(dp), range(pp), range(ep), range(tp))]
    return w.ParallelTopology(tp_size=tp, pp_size=pp, ep_size=ep, dp_size=dp, participants=tuple(
        w.TopologyParticipant(f"worker-{index}", rank) for index, rank in enumerate(ranks)))


def size(shape):
    product = ITEM
    for extent in shape:
        product *= extent
    return product


def fragments_of(tensor, topo, stage, rng=None, chunks=1):
    """Every rank's fragments of a tensor whose axes are dp replicated, pp owned (of `stage`) and ep and tp either split or
    replicated; each in `chunks` further pieces of the last dimension."""
    pieces = {axis.kind: (axis.dim, cuts(tensor.global_shape[axis.dim], getattr(topo, f"{axis.kind}_size"), rng))
              for axis in tensor.parallel_axes if isinstance(axis, w.SplitAxis)}
    found = []
    for participant in topo.participants:
        if participant.rank.pp != stage:
            continue
        offset, shape = [0] * len(tensor.global_shape), list(tensor.global_shape)
        for kind, (dim, ranges) in pieces.items():
            offset[dim], shape[dim] = ranges[getattr(participant.rank, kind)]
        for begin, extent in cuts(shape[-1], min(chunks, shape[-1])):
            at, part = (*offset[:-1], offset[-1] + begin), (*shape[:-1], extent)
            found.append(w.PlacementFragment(tensor.tensor_id, at, part, size(part), participant.rank))
    return found


def placement(topo, tensors, seed=None, chunks=1, **more):
    """`tensors`: (name, shape, split dimension of ep and of tp or None, stage)."""
    rng = random.Random(seed) if seed is not None else None
    described, held = [], []
    for name, shape, ep_dim, tp_dim, stage in tensors:
        axes = [w.ReplicatedAxis("dp"), w.OwnershipAxis("pp"),
                w.SplitAxis("ep", ep_dim) if ep_dim is not None else w.ReplicatedAxis("ep"),
                w.SplitAxis("tp", tp_dim) if tp_dim is not None else w.ReplicatedAxis("tp")]
        described.append(descriptor(name, shape, axes))
        held += fragments_of(described[-1], topo, stage % topo.pp_size, rng, chunks)
    fields = dict(resource_id="model", revision="r1", weight_generation=3, placement_set_id="set", topology=topo,
                  tensors=described, fragments=held)
    return w.WeightPlacementManifest.from_fragments(**{**fields, **more})


MODEL = [("embed", (24, 16), None, 0, 0), ("q", (24, 12), None, 1, 0), ("norm", (16,), None, None, 1),
         ("experts", (8, 12, 16), 0, 2, 2), ("router", (6, 8), None, None, 3)]


def content(tensor, seed=1):
    """The bytes of a whole tensor."""
    return random.Random(f"{tensor.tensor_id}{seed}").randbytes(size(tensor.global_shape))


def cut_out(tensor, data, fragment):
    """The bytes of one fragment, row by row."""
    out = bytearray()
    inner = fragment.local_shape[-1] * ITEM
    for place in itertools.product(*map(range, fragment.local_shape[:-1])):
        linear = 0
        for at, begin, extent in zip((*place, 0), fragment.global_offset, tensor.global_shape):
            linear = linear * extent + at + begin
        out += data[linear * ITEM:linear * ITEM + inner]
    return bytes(out)


def carried_out(plan, read):
    """What the target's fragments hold afterwards; `read(source, offset, length)` gives bytes of a source fragment."""
    memory = {}
    for operation in plan.operations:
        target = memory.setdefault(operation.target.fragment_id, bytearray(operation.target.nbytes))
        for source, at, length in operation.iter_segments(max_segments=1 << 20):
            target[at:at + length] = read(operation.source, source, length)
    return memory


def stored(tensors, key="group"):
    """Every tensor in slabs of its first dimension, two tensors an object."""
    described, held = [], []
    for index, (name, shape, *_rest) in enumerate(tensors):
        described.append(descriptor(name, shape, ()))
        at = 10
        for begin, extent in cuts(shape[0], 3):
            part = (extent, *shape[1:])
            held.append(w.StoredFragment(f"{name}:{begin}", name, (begin, *[0] * (len(shape) - 1)), part,
                                         f"{key}/payload/{index}", at, size(part)))
            at += size(part)
    return w.WeightManifest("names", "model", "r1", 3, key, f"{key}/manifest", tuple(described), tuple(held), "2026-01-01")


def summary(plan):
    """Everything that a plan says, as text."""
    return json.dumps([plan.total_bytes, plan.source_placement_id, plan.target_placement_id, [
        [item.tensor_id, item.source.fragment_id, item.target.fragment_id, item.overlap_offset, item.overlap_shape,
         item.source_base_offset, item.target_base_offset, item.inner_bytes, item.outer_loop_counts, item.source_strides,
         item.target_strides] for item in plan.operations],
        [[route.source_pp, route.target_pp, route.operation_indices] for route in plan.pipeline_routes],
        [[side, executor.participant_id, plan.operation_indices_for_executor(executor, side)]
         for side in ("source", "target") for executor in getattr(plan, f"{side}_executors")],
        [tensor.tensor_id for tensor in (*plan.source_tensors, *plan.target_tensors)]])


LAYOUTS = [dict(), dict(tp=4), dict(pp=2, tp=2), dict(dp=2, tp=3), dict(ep=4, tp=2), dict(dp=2, pp=4, tp=2),
           dict(pp=3, ep=4)]


once = unittest.skipIf(os.environ.get("MC_CONTRACT_SHORT"), "takes seconds; one Python has done it")


class Plans(unittest.TestCase):
    def placements(self):
        return [placement(topology(**sizes), MODEL, chunks=1 + index % 3) for index, sizes in enumerate(LAYOUTS)] + [
            placement(topology(**sizes), MODEL, seed=index) for index, sizes in enumerate(LAYOUTS)]

    @once
    def test_ids_json_and_plans_are_the_same_on_both_sides(self):
        said = hashlib.sha256()
        made = self.placements()
        for one in made:
            said.update(f"{one.topology.topology_id}{one.placement_id}{one.digest}{w.weight_placement_to_json(one)}".encode())
        for index, source in enumerate(made):
            for target in (made[(index + 5) % len(made)], made[(index * 3 + 1) % len(made)]):
                said.update(summary(w.plan_placement_transfer(source, target)).encode())
        manifest = stored(MODEL)
        said.update(f"{manifest.to_json()}{manifest.manifest_identity}".encode())
        for target in made[:5]:
            bare = placement(target.topology, MODEL)
            said.update(summary(w.plan_stored_transfer_to_target_placement(manifest, bare)).encode())
        self.assertEqual(said.hexdigest(), GOLDEN)

    @once
    def test_a_plan_moves_every_byte(self):
        compared = 0
        made = self.placements()
        for source, target in itertools.product(made[::3], made[1::2]):
            tensors = {tensor.tensor_id: tensor for tensor in source.tensors}
            data = {name: content(tensor) for name, tensor in tensors.items()}
            held = {item.fragment_id: cut_out(tensors[item.tensor_id], data[item.tensor_id], item) for item in source.fragments}
            plan = w.plan_placement_transfer(source, target)
            got = carried_out(plan, lambda item, at, length: held[item.fragment_id][at:at + length])
            self.assertEqual(got.keys(), {item.fragment_id for item in target.fragments})
            for item in target.fragments:
                self.assertEqual(got[item.fragment_id], cut_out(tensors[item.tensor_id], data[item.tensor_id], item))
                compared += item.nbytes
            self.assertEqual(plan.total_bytes, sum(item.nbytes for item in target.fragments))
        self.assertGreater(compared, 500_000)

    def test_one_participant_of_the_target(self):
        source, target = placement(topology(tp=2, pp=2), MODEL), placement(topology(tp=4, ep=2), MODEL)
        whole = w.plan_placement_transfer(source, target)
        for executor in whole.target_executors:
            part = w.plan_placement_transfer_to_local_target(source, target, executor.participant_id)
            wanted = [whole.operations[index] for index in whole.operation_indices_for_executor(executor, "target")]
            self.assertEqual(list(part.operations), wanted)
            self.assertEqual(part.target_executors, (executor,))
        with self.assertRaises(ValueError):
            w.plan_placement_transfer_to_local_target(source, target)
        with self.assertRaises(ValueError):
            w.plan_placement_transfer_to_local_target(source, target, "nobody")
        alone = placement(topology(), MODEL)
        self.assertEqual(len(w.plan_placement_transfer_to_local_target(source, alone).target_executors), 1)

    def test_replicas_share_the_sending(self):
        source, target = placement(topology(dp=2), MODEL), placement(topology(dp=4), MODEL)
        for operation in w.plan_placement_transfer(source, target).operations:
            self.assertEqual(operation.source.rank.dp, operation.target.rank.dp % 2)

    def test_regions(self):
        source, target = placement(topology(tp=2), MODEL[3:4]), placement(topology(ep=2), MODEL[3:4])
        first = w.plan_placement_transfer(source, target).operations[0]
        self.assertEqual((first.source_offset, first.target_offset, first.nbytes, first.repeat),
                         (first.source_base_offset, first.target_base_offset, first.inner_bytes, first.segment_count))
        self.assertEqual(len(first.source_strides), 2)
        for several in (lambda: first.source_stride, lambda: first.target_stride):
            with self.assertRaises(ValueError):
                several()
        flat = w.plan_placement_transfer(placement(topology(tp=2), MODEL[1:2]), placement(topology(), MODEL[1:2])).operations[0]
        self.assertEqual((flat.source_stride, flat.target_stride), (24, 48))
        first.validate_bounds()
        self.assertEqual(len(list(first.iter_segments(max_segments=first.segment_count))), first.segment_count)
        for most in (first.segment_count - 1, 0, "1"):
            with self.assertRaises(ValueError):
                list(first.iter_segments(max_segments=most))
        for wrong in (dict(inner_bytes=first.inner_bytes * 2), dict(source_base_offset=first.source_base_offset + 4),
                      dict(overlap_shape=(9, 12, 8)), dict(tensor_id="other"), dict(outer_loop_counts=()),
                      dict(target_strides=(0,) * len(first.target_strides)), dict(overlap_offset="0")):
            with self.assertRaises(ValueError):
                dataclasses.replace(first, **wrong)

    def test_limits(self):
        source, target = placement(topology(tp=4), MODEL), placement(topology(tp=3), MODEL)
        for name, most in (("max_transfer_regions", 5), ("max_segments_per_region", 3), ("max_total_lowered_segments", 40)):
            with self.assertRaisesRegex(ValueError, name):
                w.plan_placement_transfer(source, target, planning_limits=w.PlanningLimits(**{name: most}))
            with self.assertRaises(ValueError):
                w.PlanningLimits(**{name: 0})
        self.assertEqual(dataclasses.astuple(w.PlanningLimits()), (1_000_000, 1_000_000, 10_000_000))

    def test_plans_travel_and_are_checked(self):
        source, target = placement(topology(tp=2), MODEL), placement(topology(tp=4, pp=2), MODEL)
        plan = w.plan_placement_transfer(source, target)
        again = pickle.loads(pickle.dumps(plan))
        self.assertEqual((summary(again), again), (summary(plan), plan))
        for wrong in (dict(operations=plan.operations[1:]), dict(operations=(*plan.operations, plan.operations[0])),
                      dict(operations=()), dict(target_executors=plan.target_executors[1:]), dict(source_executors=()),
                      dict(target_tensors=plan.target_tensors[1:]), dict(source_tensors=()), dict(revision="r2"),
                      dict(source_placement=None), dict(source_manifest=stored(MODEL)), dict(target_placement=source),
                      dict(resource_id="")):
            with self.assertRaises(ValueError, msg=str(wrong.keys())):
                dataclasses.replace(plan, **wrong)
        for executor, side in ((plan.target_executors[0], "source"), (plan.source_executors[0], "middle")):
            with self.assertRaises(ValueError):
                plan.operation_indices_for_executor(executor, side)

    def test_sources_and_targets_have_to_match(self):
        source = placement(topology(tp=2), MODEL)
        for target in (placement(topology(), MODEL[:-1]), placement(topology(), [*MODEL, ("more", (4,), None, None, 0)]),
                       placement(topology(), MODEL, revision="r2"), placement(topology(), MODEL, resource_id="other"),
                       placement(topology(), MODEL, weight_generation=4),
                       placement(topology(), [*MODEL[:-1], ("router", (6, 4), None, None, 3)])):
            with self.assertRaises(ValueError):
                w.plan_placement_transfer(source, target)
            with self.assertRaises(ValueError):
                w.plan_stored_transfer_to_target_placement(stored(MODEL), target)
        with self.assertRaises(ValueError):
            w.plan_placement_transfer(None, source)

    def test_owners_by_dp(self):
        """Experts that a data-parallel rank owns: one owner is a source, two are a riddle."""
        topo = topology(dp=2)

        def owned(*ranks):
            tensors = [descriptor(f"expert-{index}", (4, 4), [w.OwnershipAxis("dp")], expert_id=index) for index in range(2)]
            held = [w.PlacementFragment(tensors[index].tensor_id, (0, 0), (4, 4), 64, w.ParallelRank(dp=dp)) for index, dp in ranks]
            return w.WeightPlacementManifest.from_fragments(
                resource_id="model", revision="r1", weight_generation=3, placement_set_id="set", topology=topo,
                tensors=tensors, fragments=held)

        plan = w.plan_placement_transfer(owned((0, 0), (1, 1)), owned((0, 1), (1, 0)))
        self.assertEqual([(item.source.rank.dp, item.target.rank.dp) for item in plan.operations],
                         [(1 - item.target.rank.dp, item.target.rank.dp) for item in plan.operations])
        with self.assertRaises(ValueError):
            w.plan_placement_transfer(owned((0, 0), (0, 1), (1, 1)), owned((0, 1), (1, 0)))


class Stored(unittest.TestCase):
    def test_weights_come_out_of_a_real_store(self):
        manifest, target = stored(MODEL, "weights"), placement(topology(tp=4, pp=2), MODEL)
        store = new_store()
        self.addCleanup(store.close)
        tensors = {tensor.tensor_id: tensor for tensor in manifest.tensors}
        objects = {}
        for item in manifest.fragments:
            data = objects.setdefault(item.object_key, bytearray(10))
            data += cut_out(tensors[item.tensor_id], content(tensors[item.tensor_id]), item)
        for key, data in objects.items():
            self.assertEqual(store.put(key, bytes(data)), 0)
        plan = w.plan_stored_transfer_to_target_placement(manifest, target)
        places, total = {}, 0
        for item in target.fragments:
            places[item.fragment_id] = total
            total += item.nbytes
        with Memory(store, total) as memory:
            ranges = {}
            for operation in plan.operations:
                wanted = ranges.setdefault(operation.source.object_key, [])
                for source, at, length in operation.iter_segments(max_segments=1 << 20):
                    wanted.append((places[operation.target.fragment_id] + at, operation.source.object_offset + source, length))
            keys = list(ranges)
            got = store.get_into_ranges([memory.ptr], [keys], [[[part[0] for part in ranges[key]] for key in keys]],
                                        [[[part[1] for part in ranges[key]] for key in keys]],
                                        [[[part[2] for part in ranges[key]] for key in keys]])
            self.assertEqual(got, [[[part[2] for part in ranges[key]] for key in keys]])
            for item in target.fragments:
                self.assertEqual(memory.read(item.nbytes, places[item.fragment_id]),
                                 cut_out(tensors[item.tensor_id], content(tensors[item.tensor_id]), item))
        self.assertEqual(plan.source_manifest_identity, manifest.manifest_identity)
        self.assertEqual({route.source_pp for route in plan.pipeline_routes}, {None})

    def test_manifest_json(self):
        manifest = stored(MODEL)
        for encoded in (manifest.to_json(), manifest.to_json().encode(), bytearray(manifest.to_json().encode())):
            self.assertEqual(w.WeightManifest.from_json(encoded), manifest)
        self.assertEqual(manifest.manifest_digest, hashlib.sha256(manifest.to_json().encode()).hexdigest())
        self.assertEqual(manifest.resource_kind, ResourceKind.MODEL_WEIGHT)
        raw = json.loads(manifest.to_json())
        self.assertEqual(w.WeightManifest.from_dict(raw), manifest)
        for change in (lambda d: d.pop("revision"), lambda d: d.update(more=1), lambda d: d.update(resource_kind="kv_cache"),
                       lambda d: d.update(weight_generation=True), lambda d: d["fragments"][0].update(nbytes=1),
                       lambda d: d["fragments"][0].update(object_key="elsewhere/x"), lambda d: d.update(manifest_key="x"),
                       lambda d: d["fragments"].pop(), lambda d: d["fragments"].append(d["fragments"][0]),
                       lambda d: d["fragments"][1].update(object_offset=11), lambda d: d["tensors"].pop(),
                       lambda d: d["fragments"][0].update(tensor_id=7), lambda d: d.update(tensors="x")):
            wrong = json.loads(json.dumps(raw))
            change(wrong)
            with self.assertRaises(ValueError):
                w.WeightManifest.from_json(json.dumps(wrong))
        for text in ("", "[]", "{", '{"a": NaN}', manifest.to_json()[:-1] + ',"revision":"r1"}', None):
            with self.assertRaises(ValueError):
                w.WeightManifest.from_json(text)

    def test_aliases_and_snapshots(self):
        names = ("head", "embed")
        tensors = [descriptor(name, (4, 2), ()) for name in names]
        held = [w.StoredFragment(name, name, (0, 0), (4, 2), f"g/payload/{name}", 0, 32, names) for name in names]

        def manifest(tensors, held):
            return w.WeightManifest("n", "model", "r1", 3, "g", "g/manifest", tuple(tensors), tuple(held), "now")

        made = manifest(tensors, held)
        self.assertEqual(made.fragments[0].aliases, ("embed", "head"))
        self.assertEqual(validate_weight_manifest_snapshot(made), made)
        for wrong in ((tensors, [held[0], dataclasses.replace(held[1], aliases=())]),
                      ([tensors[0], dataclasses.replace(tensors[1], layer_id=1)], held)):
            with self.assertRaises(ValueError):
                manifest(*wrong)
        for aliases in (("head",), ("a", "b"), ("head", "head"), "head"):
            with self.assertRaises(ValueError):
                dataclasses.replace(held[0], aliases=aliases)
        plan = w.plan_stored_transfer_to_target_placement(stored(MODEL), placement(topology(), MODEL))
        plan.validate_source_manifest_snapshot()
        object.__setattr__(plan.source_manifest.fragments[0], "object_offset", 11)
        with self.assertRaises(ValueError):
            plan.validate_source_manifest_snapshot()
        with self.assertRaises(ValueError):
            validate_weight_manifest_snapshot(None)


class Placements(unittest.TestCase):
    def test_json(self):
        made = placement(topology(tp=2, pp=2), MODEL)
        encoded = w.weight_placement_to_json(made)
        again = w.weight_placement_from_json(encoded)
        self.assertEqual((again, again.digest), (made, made.digest))
        self.assertEqual(made.digest, hashlib.sha256(encoded.encode()).hexdigest())
        raw = json.loads(encoded)
        for change in (lambda d: d.pop("parts"), lambda d: d.update(extra=0), lambda d: d.update(placement_id="sha256:0"),
                       lambda d: d.update(placement_id=None), lambda d: d["topology"].update(topology_id="x"),
                       lambda d: d["topology"].update(topology_id=None), lambda d: d["topology"].update(tp_size=3),
                       lambda d: d["parts"].pop(), lambda d: d["tensors"].append(d["tensors"][0]),
                       lambda d: d["tensors"][0].update(tensor_id="unused"), lambda d: d["tensors"][0].update(itemsize=4.0),
                       lambda d: d["tensors"][0]["parallel_axes"][0].update(semantics="other"),
                       lambda d: d["tensors"][0]["parallel_axes"][0].update(dim=0),
                       lambda d: d["parts"][0]["fragments"][0].update(nbytes=1),
                       lambda d: d["parts"][0]["fragments"][0].update(rank={"dp": 0}),
                       lambda d: d["parts"][0]["fragments"][0].pop("aliases"), lambda d: d.update(resource_kind="kv_cache"),
                       lambda d: d["parts"][0]["fragments"][0].update(placement_fragment_id=None)):
            wrong = json.loads(encoded)
            change(wrong)
            with self.assertRaises(ValueError):
                w.weight_placement_from_json(json.dumps(wrong))
        for text in ("", "null", encoded.replace('"revision":', '"revision":"r1","revision":', 1), None):
            with self.assertRaises(ValueError):
                w.weight_placement_from_json(text)
        with self.assertRaises(ValueError):
            w.weight_placement_to_json(raw)

    def test_stages_of_a_pipeline(self):
        plain = w.PlacementFragment("t", (0,), (2,), 8, w.ParallelRank())
        staged = w.PlacementFragment("t", (0,), (2,), 8, w.ParallelRank(), pipeline_stage_id=1)
        self.assertEqual(plain.fragment_id, plain.placement_fragment_id)
        self.assertNotEqual(plain.fragment_id, staged.fragment_id)

        def one(stage):
            topo = topology()
            return w.WeightPlacementManifest.from_fragments(
                resource_id="model", revision="r1", weight_generation=3, placement_set_id="set", topology=topo,
                tensors=[descriptor("t", (2,), ())],
                fragments=[w.PlacementFragment("t", (0,), (2,), 8, w.ParallelRank(), pipeline_stage_id=stage)])

        route, = w.plan_placement_transfer(one(2), one(None)).pipeline_routes
        self.assertEqual((route.source_pp, route.source_pipeline_stage_id, route.target_pp, route.target_pipeline_stage_id,
                          route.operation_indices), (0, 2, 0, None, (0,)))
        self.assertEqual(w.weight_placement_from_json(w.weight_placement_to_json(one(2))), one(2))
        for wrong in (dict(operation_indices=(0, 0)), dict(source_pp=-1), dict(target_pp=None), dict(operation_indices=("a",))):
            with self.assertRaises(ValueError):
                dataclasses.replace(route, **wrong)

    def test_layouts_that_do_not_add_up(self):
        topo = topology(tp=2)
        tensor = descriptor("t", (4, 6), [w.SplitAxis("tp", 1)])

        def made(boxes, tensor=tensor, topo=topo, **more):
            held = [w.PlacementFragment("t", offset, shape, size(shape), w.ParallelRank(**rank)) for offset, shape, rank in boxes]
            fields = dict(resource_id="m", revision="r", weight_generation=0, placement_set_id="s", topology=topo,
                          tensors=[tensor], fragments=held)
            return w.WeightPlacementManifest.from_fragments(**{**fields, **more})

        halves = [((0, 0), (4, 3), dict(tp=0)), ((0, 3), (4, 3), dict(tp=1))]
        rows = [((0, 0), (2, 6), dict(tp=0)), ((2, 0), (2, 6), dict(tp=1))]
        full = [((0, 0), (4, 6), dict(tp=0)), ((0, 0), (4, 6), dict(tp=1))]
        made(halves)
        made([((0, 0), (2, 3), dict(tp=0)), ((2, 0), (2, 3), dict(tp=0)), halves[1]])
        made([((0, 0), (4, 2), dict(tp=0)), ((0, 2), (4, 2), dict(tp=1)), ((0, 4), (4, 2), dict(tp=0))])
        made(full, descriptor("t", (4, 6), [w.ReplicatedAxis("tp")]))
        for wrong in (halves[:1], rows, full, [*halves, halves[0]], [halves[0], ((0, 2), (4, 4), dict(tp=1))],
                      [((0, 0), (4, 6), dict(tp=0))], [halves[0], ((0, 3), (4, 3), dict(tp=0))],
                      [halves[0], ((0, 3), (4, 4), dict(tp=1))], [halves[0], ((0, 3), (4, 3), dict(tp=1, dp=1))], []):
            with self.assertRaises(ValueError, msg=str(wrong)):
                made(wrong)
        for axes in ([], [w.OwnershipAxis("tp")]):
            with self.assertRaises(ValueError):
                made(halves, descriptor("t", (4, 6), axes))
        with self.assertRaises(ValueError):
            made(full[:1], descriptor("t", (4, 6), [w.ReplicatedAxis("tp")]))
        for more in (dict(resource_id=""), dict(weight_generation=-1), dict(weight_generation=1 << 64), dict(placement_id="x"),
                     dict(tensors=[tensor, tensor]), dict(tensors=[]), dict(fragments="x"),
                     dict(tensors=[tensor, descriptor("u", (1,), ())])):
            with self.assertRaises(ValueError, msg=str(more)):
                made(halves, **more)
        # Expert ranks that are the tensor ranks' processes need no axis of their own; independent ones do.
        coupled = w.ParallelTopology(tp_size=2, pp_size=1, ep_size=2, dp_size=1, participants=tuple(
            w.TopologyParticipant(f"w{i}", w.ParallelRank(tp=i, ep=i)) for i in range(2)))
        made([((0, 0), (4, 3), dict(tp=0, ep=0)), ((0, 3), (4, 3), dict(tp=1, ep=1))], topo=coupled)
        with self.assertRaises(ValueError):
            made(halves, topo=topology(tp=2, ep=2))

    def test_parts(self):
        made = placement(topology(tp=2), MODEL)
        part = made.parts[0]
        again = w.WeightPlacementManifest(resource_id="model", revision="r1", weight_generation=3, placement_set_id="set",
                                          topology=made.topology, parts=made.parts[::-1], placement_id=made.placement_id)
        self.assertEqual(again, made)
        for wrong in (dict(rank=w.ParallelRank(tp=1)), dict(tensors=part.tensors[1:]), dict(participant_id=""),
                      dict(fragments=part.fragments + part.fragments[:1]), dict(weight_generation="3"), dict(rank=None)):
            with self.assertRaises(ValueError):
                dataclasses.replace(part, **wrong)
        for wrong in (dict(revision="r2"), dict(topology_id="x"), dict(participant_id="worker-9"), dict(weight_generation=9)):
            with self.assertRaises(ValueError):
                w.WeightPlacementManifest(resource_id="model", revision="r1", weight_generation=3, placement_set_id="set",
                                          topology=made.topology, parts=(dataclasses.replace(part, **wrong), made.parts[1]))

    def test_aliases(self):
        names = ("embed", "head")

        def made(said):
            tensors = [descriptor(name, (4, 2), ()) for name in names]
            held = [w.PlacementFragment(name, (0, 0), (4, 2), 32, w.ParallelRank(), aliases=aliases)
                    for name, aliases in zip(names, said)]
            return w.WeightPlacementManifest.from_fragments(
                resource_id="m", revision="r", weight_generation=0, placement_set_id="s", topology=topology(), tensors=tensors,
                fragments=held)

        self.assertEqual(made([names[::-1], names]).fragments[0].aliases, names)
        for wrong in ([names, ()], [("embed", "other"), ()]):
            with self.assertRaises(ValueError):
                made(wrong)

    def test_values(self):
        for make in (lambda: w.ParallelRank(dp=-1), lambda: w.ParallelRank(tp=True), lambda: w.SplitAxis("dp", 0),
                     lambda: w.SplitAxis("ep", 1), lambda: w.SplitAxis("tp", -1), lambda: w.ReplicatedAxis("xp"),
                     lambda: w.OwnershipAxis(1), lambda: descriptor("t", (), ()), lambda: descriptor("t", (0,), ()),
                     lambda: descriptor("", (1,), ()), lambda: descriptor("t", (2,), [w.SplitAxis("tp", 1)]),
                     lambda: descriptor("t", (2, 2), [w.SplitAxis("tp", 0)], shard_dims=()),
                     lambda: descriptor("t", (2, 2), [w.ReplicatedAxis("tp"), w.OwnershipAxis("tp")]),
                     lambda: descriptor("t", (2, 2), [w.SplitAxis("tp", 0), w.SplitAxis("ep", 0)], shard_dims=(0,)),
                     lambda: descriptor("t", (2, 2), [w.SplitAxis("ep", 0)], expert_id=1), lambda: descriptor("t", "ab", ()),
                     lambda: descriptor("t", (2,), ["tp"]), lambda: descriptor("t", (2,), (), layer_id=-1),
                     lambda: w.PlacementFragment("t", (0,), (0,), 4, w.ParallelRank()),
                     lambda: w.PlacementFragment("t", (0,), (1,), 4, None),
                     lambda: w.PlacementFragment("t", (0,), (1,), 0, w.ParallelRank()),
                     lambda: w.PlacementFragment("t", (-1,), (1,), 4, w.ParallelRank()),
                     lambda: w.TopologyParticipant("", w.ParallelRank()), lambda: topology(dp=0),
                     lambda: w.ParallelTopology(tp_size=1, pp_size=1, ep_size=1, dp_size=1, participants=(
                         w.TopologyParticipant("a", w.ParallelRank(tp=1)),)),
                     lambda: w.ParallelTopology(tp_size=1, pp_size=1, ep_size=1, dp_size=1, participants=(
                         w.TopologyParticipant("a", w.ParallelRank()), w.TopologyParticipant("b", w.ParallelRank()))),
                     lambda: w.StoredFragment("f", "t", (0,), (1,), "", 0, 4), lambda: w.StoredFragment("f", "t", (0,), (1,), "k", -1, 4)):
            with self.assertRaises(ValueError):
                make()
        topo = topology(tp=2)
        self.assertEqual((topo.world_size, topo.participant("worker-1").rank.tp), (2, 1))
        with self.assertRaises(ValueError):
            topo.participant("worker-2")


class Bindings(unittest.TestCase):
    def setUp(self):
        self.placement = placement(topology(tp=2), MODEL)
        self.memory = ctypes.create_string_buffer(MIB)
        self.next = ctypes.addressof(self.memory)

    def bound(self, part, **more):
        tensors = {tensor.tensor_id: tensor for tensor in part.tensors}
        held = []
        for item in part.fragments:
            strides = [ITEM]
            for extent in reversed(item.local_shape[1:]):
                strides.insert(0, strides[0] * extent)
            self.assertEqual(tensors[item.tensor_id].itemsize, ITEM)
            held.append(w.RuntimeBindingFragment(
                item.fragment_id, f"memory-{len(held)}", self.next, item.nbytes, "worker", "127.0.0.1:1", "cpu", ITEM,
                item.local_shape, tuple(strides), self.next, item.nbytes, 0, owner=self.memory))
            self.next += item.nbytes
        fields = dict(resource_id="model", placement_id=self.placement.placement_id, placement_digest=self.placement.digest,
                      instance_id="instance", generation=1, lease_id="lease", revision="r1", participant_id=part.participant_id,
                      fragments=tuple(held))
        return w.WeightRuntimeBindingManifest(**{**fields, **more})

    def test_bindings(self):
        both = [self.bound(part) for part in self.placement.parts]
        w.validate_runtime_bindings(self.placement, both)
        w.validate_runtime_binding(self.placement, both[0])
        contracts.validate_resource_binding_identity(self.placement, both[0])
        self.assertEqual(both[0].resource_kind, ResourceKind.MODEL_WEIGHT)
        item = both[0].fragments[0]
        again = pickle.loads(pickle.dumps(item))
        self.assertEqual(again, item)
        self.assertIsNone(again.owner)
        for wrong in (both[:1], [*both, both[0]], [], [both[0], dataclasses.replace(both[0], participant_id="worker-1")]):
            with self.assertRaises(ValueError):
                w.validate_runtime_bindings(self.placement, wrong)
        for wrong in (dict(revision="r2"), dict(placement_digest="0" * 64), dict(placement_id="other"), dict(resource_id="x"),
                      dict(participant_id="worker-1"), dict(fragments=both[0].fragments[1:]), dict(fragments=both[1].fragments)):
            with self.assertRaises(ValueError):
                w.validate_runtime_binding(self.placement, dataclasses.replace(both[0], **wrong))
        for wrong in (dict(placement_digest="A" * 64), dict(generation=-1), dict(lease_id=""), dict(fragments=(item, item))):
            with self.assertRaises(ValueError):
                dataclasses.replace(both[0], **wrong)

    def test_memory(self):
        one = self.bound(self.placement.parts[0])
        first, second, *rest = one.fragments
        here = dict(address=first.address, storage_address=first.address)
        for wrong in ((first, dataclasses.replace(second, **here), *rest),
                      (first, dataclasses.replace(second, itemsize=2), *rest),
                      (first, dataclasses.replace(second, storage_nbytes=second.nbytes + 4), *rest),
                      (first, dataclasses.replace(second, strides_bytes=tuple(2 * step for step in second.strides_bytes)), *rest)):
            with self.assertRaises(ValueError):
                w.validate_runtime_binding(self.placement, dataclasses.replace(one, fragments=wrong))
        apart = [self.bound(part) for part in self.placement.parts]
        over = tuple(dataclasses.replace(item, address=first.address, storage_address=first.address, worker_id="worker")
                     if index == 0 else item for index, item in enumerate(apart[1].fragments))
        with self.assertRaises(ValueError):
            w.validate_runtime_bindings(self.placement, [one, dataclasses.replace(apart[1], fragments=over)])
        w.validate_runtime_bindings(self.placement, [one, dataclasses.replace(apart[1], fragments=over, instance_id="other")])
        for wrong in (dict(address=0), dict(nbytes=0), dict(address=first.address + 1), dict(storage_nbytes=1),
                      dict(strides_bytes=()), dict(local_shape=(0,)), dict(device=""), dict(address=(1 << 64) - 1),
                      dict(storage_offset_bytes=1 << 64), dict(itemsize=0), dict(fragment_id=None)):
            with self.assertRaises(ValueError, msg=str(wrong)):
                dataclasses.replace(first, **wrong)
        single = w.RuntimeBindingFragment("p", "r", 64, 8, "w", "e", "cpu", 4, (1, 2), (999, 4), 64, 8, 0)
        self.assertEqual(single.strides_bytes, (8, 4))

    def test_aliases_share_memory(self):
        names = ("embed", "head")
        tensors = [descriptor(name, (4, 2), ()) for name in names]
        held = [w.PlacementFragment(name, (0, 0), (4, 2), 32, w.ParallelRank(), aliases=names) for name in names]
        made = w.WeightPlacementManifest.from_fragments(
            resource_id="model", revision="r1", weight_generation=3, placement_set_id="s", topology=topology(), tensors=tensors,
            fragments=held)
        self.placement = made
        one = self.bound(made.parts[0])
        first, second = one.fragments
        shared = dataclasses.replace(second, address=first.address, storage_address=first.address)
        w.validate_runtime_binding(made, dataclasses.replace(one, fragments=(first, shared)))
        shifted = dataclasses.replace(second, address=first.address + 8, storage_address=first.address + 8)
        with self.assertRaises(ValueError):
            w.validate_runtime_binding(made, dataclasses.replace(one, fragments=(first, shifted)))


class Geometry(unittest.TestCase):
    def test_boxes_against_counting(self):
        rng = random.Random(7)
        seen = set()
        for _ in range(400):
            dims = rng.randrange(1, 4)
            boxes = [(tuple(rng.randrange(5) for _ in range(dims)), tuple(rng.randrange(1, 4) for _ in range(dims)))
                     for _ in range(rng.randrange(1, 5))]
            cells = [cell for offset, shape in boxes
                     for cell in itertools.product(*(range(a, a + n) for a, n in zip(offset, shape)))]
            overlap = len(cells) != len(set(cells))
            self.assertEqual(geometry.boxes_overlap(boxes), overlap, boxes)
            low = tuple(min(offset[dim] for offset, _ in boxes) for dim in range(dims))
            high = tuple(max(offset[dim] + shape[dim] for offset, shape in boxes) for dim in range(dims))
            whole = tuple(b - a for a, b in zip(low, high))
            exact = not overlap and len(cells) * ITEM == size(whole)
            self.assertEqual(geometry.boxes_exactly_cover(low, whole, boxes), exact)
            seen.add((overlap, exact))
        self.assertEqual(seen, {(True, False), (False, False), (False, True)})

    def test_boxes(self):
        windmill = [((0, 0), (1, 2)), ((0, 2), (2, 1)), ((2, 1), (1, 2)), ((1, 0), (2, 1)), ((1, 1), (1, 1))]
        self.assertTrue(geometry.boxes_exactly_cover((0, 0), (3, 3), windmill))
        self.assertFalse(geometry.boxes_exactly_cover((0, 0), (3, 3), windmill[1:]))
        self.assertTrue(geometry.boxes_overlap([*windmill, ((1, 1), (1, 1))]))
        self.assertFalse(geometry.boxes_exactly_cover((0, 0), (3, 3), []))
        self.assertTrue(geometry.box_contains((0, 0), (3, 3), (1, 1), (2, 2)))
        self.assertFalse(geometry.box_contains((0, 0), (3, 3), (1, 1), (3, 2)))
        with self.assertRaises(ValueError):
            geometry.box_contains((0,), (3,), (1, 1), (2, 2))
        grid = [((x, y), (1, 1)) for x in range(100) for y in range(100)]
        self.assertTrue(geometry.boxes_exactly_cover((0, 0), (100, 100), grid))
        plan = w.plan_placement_transfer(placement(topology(tp=2), MODEL), placement(topology(), MODEL))
        target = plan.operations[0].target
        self.assertTrue(geometry.regions_exactly_cover(target, [item for item in plan.operations if item.target == target]))

    @ours_only("upstream has no budget in two dimensions, and another one in more")
    def test_what_takes_too_long_is_refused(self):
        steps, geometry.MAX_STEPS = geometry.MAX_STEPS, 3
        try:
            with self.assertRaises(ValueError):
                geometry.boxes_overlap([((0, 0), (1, 2)), ((0, 2), (2, 1)), ((2, 1), (1, 2)), ((1, 0), (2, 1))])
        finally:
            geometry.MAX_STEPS = steps


if __name__ == "__main__":
    unittest.main()
