"""What devices send each other: the forms in which programs say it, and real programs against counts by hand."""

import jax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from tests.training.sharded import Family, config_of
from transformer.plan.collectives import SENT, bytes_by_axes, collectives

MESH = {"data": 2, "fsdp": 3, "tensor": 4}


def program(*lines: str) -> str:
    return "\n".join(["HloModule m", "", "ENTRY %main (p: f32[2]) -> f32[2] {", *lines, "}"])


@pytest.mark.parametrize(
    ("groups", "axes", "size"),
    [
        ("replica_groups=[6,4]<=[24]", ("tensor",), 4),
        ("replica_groups=[8,3]<=[2,3,4]T(0,2,1)", ("fsdp",), 3),
        ("replica_groups=[12,2]<=[2,12]T(1,0)", ("data",), 2),
        ("replica_groups=[2,12]<=[24]", ("fsdp", "tensor"), 12),
        ("replica_groups=[1,24]<=[24]", ("data", "fsdp", "tensor"), 24),
        ("replica_groups=mesh['a'=2,'b'=12] {'a'}", ("data",), 2),
        ("replica_groups=mesh['a'=4,'b'=6], device_ids=([6,4]T(1,0)) {'a'}", ("tensor",), 4),
        ("replica_groups=mesh['a'=24] {'a':(2)3}", ("fsdp",), 3),
        ("replica_groups={{0,1,2,3},{4,5,6,7},{8,9,10,11},{12,13,14,15},{16,17,18,19},{20,21,22,23}}", ("tensor",), 4),
    ],
)
def test_groups_become_axes(groups, axes, size):
    (found,) = collectives(program(f"  %r = f32[5,7]{{1,0}} all-reduce(%x), channel_id=1, {groups}"), MESH)
    assert (found.kind, found.axes, found.group) == ("all-reduce", axes, size)
    assert found.sent == 2 * 5 * 7 * 4 * (size - 1) / size and (found.times, found.exact) == (1, True)


def test_groups_in_another_form_are_no_zero():
    with pytest.raises(ValueError, match="not known"):
        collectives(program("  %r = f32[5]{0} all-reduce(%x), replica_groups=everybody"), MESH)


def test_what_a_device_sends():
    one, whole = "replica_groups=[6,4]<=[24]", 4
    lines = {
        "all-gather": ("bf16[12,5]", 12 * 5 * 2 * 3 / whole),
        "reduce-scatter": ("f32[3,5]", 3 * 5 * 4 * 3),
        "all-to-all": ("f32[8,5]", 8 * 5 * 4 * 3 / whole),
        "all-reduce": ("(s8[6], pred[2])", 2 * 8 * 3 / whole),
    }
    for kind, (shape, sent) in lines.items():
        (found,) = collectives(program(f"  %r = {shape} {kind}(%x), {one}"), MESH)
        assert found.kind == kind and found.sent == sent
    pairs = "source_target_pairs={{0,12},{12,0}}"
    (found,) = collectives(program(f"  %r = f32[3,5]{{1,0:T(8,128)}} collective-permute(%x), {pairs}"), MESH)
    assert (found.axes, found.sent) == (("data",), 3 * 5 * 4)
    assert lines.keys() | {"collective-permute"} <= SENT.keys()
    assert not collectives(program("  %r = f32[3] all-reduce(%x), replica_groups=[24,1]<=[24]"), MESH)
    alone = "source_target_pairs={{0,0},{1,1}}"
    assert not collectives(program(f"  %r = f32[3] collective-permute(%x), {alone}"), MESH)


def test_the_start_of_an_asynchronous_one_is_counted_and_its_end_is_not():
    lines = (
        "  %s = (bf16[3,5]{1,0:T(8,128)(2,1)}, bf16[12,5]{1,0:T(8,128)(2,1)S(1)}) all-gather-start(%x), "
        "replica_groups=[6,4]<=[24]",
        "  %d = bf16[12,5]{1,0} all-gather-done(%s)",
    )
    (found,) = collectives(program(*lines), MESH)
    assert found.shapes == (("bf16", (12, 5)),) and found.sent == 12 * 5 * 2 * 3 / 4


def test_loops_multiply_and_those_of_unknown_length_are_said_to_be():
    reduce = '  %r = f32[5] all-reduce(%x), replica_groups=[6,4]<=[24], metadata={op_name="jit(f)/sum"}'
    trips = 'backend_config={"known_trip_count":{"n":"7"}}'
    text = "\n".join(
        [
            "%inner (p: f32[5]) -> f32[5] {",
            reduce,
            "}",
            "%outer (p: f32[5]) -> f32[5] {",
            f"  %w = f32[5] while(%p), condition=%c, body=%inner, {trips}",
            "}",
            "%c (p: f32[5]) -> pred[] {",
            "}",
            "%never (p: f32[5]) -> f32[5] {",
            reduce,
            "}",
            "%branch (p: f32[5]) -> f32[5] {",
            reduce,
            "}",
            program(
                f"  %a = f32[5] while(%p), condition=%c, body=%outer, {trips.replace('7', '3')}",
                "  %b = f32[5] conditional(%i, %p, %p), branch_computations={%branch, %c}",
                "  %d = f32[5] while(%p), condition=%c, body=%unknown",
            ),
            "%unknown (p: f32[5]) -> f32[5] {",
            reduce,
            "}",
        ]
    )
    found = {(each.times, each.exact, each.name) for each in collectives(text, MESH)}
    assert found == {(21, True, "jit(f)/sum"), (1, True, "jit(f)/sum"), (1, False, "jit(f)/sum")}


def test_the_compiler_of_tpus_leaves_the_length_of_a_loop_to_its_condition():
    reduce = "  %r = f32[5] all-reduce(%x), replica_groups=[6,4]<=[24]"
    text = "\n".join(
        [
            "%scan (p: (s32[], f32[5])) -> pred[] {",
            "  %limit = s32[]{:T(128)} constant(7)",
            "  %n = s32[]{:T(128)} get-tuple-element(%p), index=0",
            "  ROOT %lt = pred[]{:T(512)} compare(%n, %limit), direction=LT",
            "}",
            "%search (p: (s32[], pred[])) -> pred[] {",
            "  %limit.2 = s32[]{:T(128)} constant(7)",
            "  %lt.2 = pred[]{:T(512)} compare(%n, %limit.2), direction=LT",
            "  ROOT %and = pred[]{:T(512)} and(%lt.2, %going_on)",
            "}",
            *(line for name in ("one", "two") for line in (f"%{name} (p: f32[5]) -> f32[5] {{", reduce, "}")),
            program(
                "  %a = f32[5] while(%p), condition=%scan, body=%one",
                "  %b = f32[5] while(%p), condition=%search, body=%two",
            ),
        ]
    )
    assert {(each.times, each.exact) for each in collectives(text, MESH)} == {(7, True), (1, False)}


def test_pieces_of_one_that_goes_on_beside_other_work_are_one():
    """TPUs: each fusion that computes meanwhile names it once more."""
    line = (
        '  %g = bf16[12,5] all-gather(%x), channel_id=3, replica_groups=[6,4]<=[24], frontend_attributes={chain_id="0"}'
    )
    (found,) = collectives(program(line, line.replace("%g", "%h"), line.replace("%g", "%i")), MESH)
    assert found.sent == 12 * 5 * 2 * 3 / 4
    assert len(collectives(program(line, line.replace("channel_id=3", "channel_id=5")), MESH)) == 2


def test_slices_send_over_a_network():
    line = (
        "  %s = (f32[3,5]{1,0:T(8,128)}, u32[], token[]) send(%x, %t), channel_id=2, is_host_transfer=true, "
        'frontend_attributes={_xla_megascale_target="{1,2}x{0:3}",_xla_megascale_transfer_type="ALL_REDUCE"}'
    )
    (found,) = collectives(program(line), {"slice": 4, "data": 2})
    assert (found.kind, found.axes, found.group) == ("all-reduce", ("slice",), 4)
    assert found.sent == 2 * 3 * 5 * 4 * 3 / 4
    assert not collectives(program("  %s = (f32[3], u32[], token[]) send(%x, %t), channel_id=2"), MESH)
    with pytest.raises(ValueError, match="in a form that is not known: BY_PIGEON"):
        collectives(program(line.replace("ALL_REDUCE", "BY_PIGEON")), {"slice": 4, "data": 2})


def test_a_sum_of_which_a_part_is_kept_is_sent_once():
    """TPUs: a fusion that is called so, with a sum in it and a slice of that."""
    lines = (
        "%all-reduce-scatter.7 (input: f32[8,5]) -> f32[2,5] {",
        "  %s = f32[8,5] all-reduce(%input), replica_groups=[6,4]<=[24]",
        "  ROOT %d = f32[2,5] dynamic-slice(%s, %i, %j), dynamic_slice_sizes={2,5}",
        "}",
        program("  %r = f32[2,5] fusion(%x), kind=kCustom, calls=%all-reduce-scatter.7"),
    )
    (found,) = collectives("\n".join(lines), MESH)
    assert found.kind == "reduce-scatter" and found.sent == 8 * 5 * 4 * 3 / 4


@pytest.mark.parametrize("axis", ["data", "fsdp", "tensor"])
def test_a_real_sum_along_each_axis(axis):
    sizes = {"data": 2, "fsdp": 1, "tensor": 2} if axis != "fsdp" else {"data": 2, "fsdp": 2, "tensor": 1}
    mesh = jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * 3)
    shared, whole = NamedSharding(mesh, PartitionSpec(axis)), NamedSharding(mesh, PartitionSpec())
    x = jax.ShapeDtypeStruct((6, 11, 13), "float32", sharding=shared)
    text = jax.jit(lambda x: x.sum(axis=0), out_shardings=whole).lower(x).compile().as_text()
    assert bytes_by_axes(collectives(text, mesh.shape)) == {axis: 2 * 11 * 13 * 4 * 1 / 2}


def test_layers_are_counted_as_often_as_they_run_scanned_or_not(tmp_path):
    sizes = {"data": 1, "fsdp": 2, "tensor": 2}
    totals = {}
    for layers, unroll in ((2, 1), (4, 1), (6, 1), (4, 4)):
        config = config_of("masked_lm", str(tmp_path), num_encoder_layers=layers, scan_unroll=unroll)
        sent = Family(config).on(sizes, run=False).sent
        gathers = [each for each in sent if each.kind == "all-gather"]
        others = [each for each in sent if each.kind != "all-gather"]
        totals[layers, unroll] = {**bytes_by_axes(others), "gathers": bytes_by_axes(gathers)["fsdp"]}
    for part in ("fsdp", "tensor", "gathers"):
        two, four, six = (totals[layers, 1][part] for layers in (2, 4, 6))
        assert six - four == four - two > 0
        if part != "gathers":
            assert totals[4, 4][part] == pytest.approx(four, rel=0.05)
    # Without a loop the backward pass finds kernels that the forward pass has gathered.
    assert totals[4, 1]["gathers"] / 2 <= totals[4, 4]["gathers"] <= totals[4, 1]["gathers"]
