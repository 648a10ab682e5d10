"""The examples of docs/extending.md are run as they stand there, with the lines that it adds to the tables."""

import dataclasses
import functools
import importlib
import pathlib
import re
import sys
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jaxtyping import install_import_hook

from tests.models import small, test_attention
from tests.test_architecture import faults_of_import, imports
from transformer.config import Config, DataConfig, ModelConfig, TrainingConfig
from transformer.models.attention import KERNELS, Kernel, attend
from transformer.models.cache import init_cache
from transformer.models.masks import AttentionMask
from transformer.models.positions import POSITION_ENCODINGS
from transformer.models.seq2seq import Seq2SeqMasks
from transformer.tasks import TASKS, make_task
from transformer.training.loading import load
from transformer.training.partitioning import make_mesh, parameter_shardings, unbox
from transformer.training.state import new_state
from transformer.training.step import make_train_step
from transformer.training.trainer import train
from transformer.types import Task, UserError

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")


def blocks(language: str, first_line: str) -> dict[str, str]:
    """The fenced blocks in a language, by the path that their first line names."""
    found = re.findall(rf"^```{language}\n{first_line} (\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(found) == len(re.findall(rf"^```{language}$", PAGE, re.MULTILINE)), "a block without its path"
    return dict(found)


PYTHON, TABLES = blocks("python", "#"), blocks("diff", "---")


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """Imports the block of a path, its shape annotations checked like those of the package."""
    folder = tmp_path_factory.mktemp("examples")
    sys.path.insert(0, str(folder))
    names = []

    def load_block(path: str) -> ModuleType:
        name = "example_" + pathlib.Path(path).stem
        if name not in names:
            names.append(name)
            (folder / f"{name}.py").write_text(PYTHON[path], encoding="utf-8")
            with install_import_hook(name, "beartype.beartype"):
                importlib.import_module(name)
        return sys.modules[name]

    yield load_block
    sys.path.remove(str(folder))
    for name in names:
        del sys.modules[name]


def added(path: str) -> tuple[str, str]:
    """The last name and value that a table's block adds."""
    line = next(line for line in TABLES[path].splitlines() if line.startswith("+"))
    return re.findall(r'"(\w+)": (\w+)', line)[-1]


@pytest.mark.parametrize("path", TABLES)
def test_the_tables_are_where_the_page_says(path):
    lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
    old = [line[1:] for line in TABLES[path].splitlines() if line[0] in " -"]
    assert old and old in [lines[i : i + len(old)] for i in range(len(lines))]


@pytest.mark.parametrize("path", PYTHON)
def test_the_examples_keep_the_rules_of_the_house(path):
    room = path.split("/")[1]
    assert not [fault for _, name in imports(PYTHON[path]) if (fault := faults_of_import(room, name))]
    assert max(map(len, PYTHON[path].splitlines())) <= 120


def test_a_position_scheme(example, monkeypatch):
    path = "transformer/models/positions.py"
    name, value = added(path)
    monkeypatch.setitem(POSITION_ENCODINGS, name, getattr(example(path), value))
    model, params = small.model_and_params(small.config(position_encoding=name))
    source, target = small.tokens(2, 5), small.tokens(2, 5, seed=1)

    def logits(positions, params=params):
        positions = jnp.broadcast_to(jnp.asarray(positions, jnp.int32), (2, 5))
        given = {"encoder_positions_BS": positions, "decoder_positions_BT": positions}
        own = AttentionMask(query_positions=positions, key_positions=positions)
        masks = Seq2SeqMasks(own, dataclasses.replace(own, causal=True), AttentionMask())
        return small.run(model, params, source, target, masks, **given, deterministic=True)

    full = logits(np.arange(5))
    assert not np.allclose(full, logits(0), atol=1e-3)
    gradient = jax.grad(lambda params: jnp.square(logits(np.arange(5), params)).sum())(params)
    assert (np.abs(gradient["decoder"]["position_encoding"]["log_slopes"]) > 0).all()

    # Tokens one at a time: equal to the full forward pass, which therefore is causal too.
    encoded = small.run(model, params, source, AttentionMask(), method="encode")
    cache = init_cache(model.config, 2, 5)
    for place in range(5):
        found, cache = small.run(
            model, params, target[:, place : place + 1], encoded, AttentionMask(causal=True), AttentionMask(),
            positions_BT=jnp.full((1, 1), place), cache=cache, method="decode",
        )  # fmt: skip
        np.testing.assert_allclose(found, full[:, place : place + 1], atol=2e-5)

    boxed = POSITION_ENCODINGS[name](model.config, False).init(jax.random.key(0), method="bias")
    parameter_shardings(make_mesh(Config().mesh), boxed["params"])  # raises for a parameter without names


def test_a_kernel(example, monkeypatch):
    path = "transformer/models/attention/__init__.py"
    name, _ = added(path)
    module = example(f"transformer/models/attention/{name}.py")
    monkeypatch.setitem(KERNELS, name, Kernel(getattr(module, name), module.refusal))
    monkeypatch.setattr(module, "CHUNK", 3)  # of 7 queries
    test_attention.agrees_with_the_oracle(name, "both lengths", 2, "float32", "relative", 1.5)
    test_attention.test_padding_never_reaches_an_output_or_a_gradient(name, np.nan, "segments")
    test_attention.test_a_row_that_sees_nothing_gives_zeros(name, "float16")

    query, key, value = map(jnp.asarray, test_attention.arrays(6))
    mask = test_attention.MASKS["matrix in a cache"]
    by_both = [jax.jit(functools.partial(attend, implementation=n))(query, key, value, mask) for n in (name, "dense")]
    np.testing.assert_allclose(*by_both, atol=1e-5)
    with pytest.raises(UserError, match="query_chunks cannot serve here: it has no attention dropout; use auto, or"):
        attend(query, key, value, mask, dropout_rate=0.3, dropout_rng=jax.random.key(0), implementation=name)


TASK = "transformer/tasks/language_identification.py"
CONFIG = Config(
    data=DataConfig(num_phrases=101, tokens_per_batch=31 * 23, max_source_length=23),
    model=ModelConfig(d_model=14, d_ff=17, num_heads=2, num_encoder_layers=1, dropout_rate=0.0),
    training=TrainingConfig(
        num_steps=60, schedule="constant", learning_rate=0.02, warmup_steps=5, log_every=30, evaluate_every=60,
        best_metric="accuracy",
    ),
)  # fmt: skip


@pytest.fixture
def task_name(example, monkeypatch):
    name, value = added("transformer/tasks/__init__.py")
    monkeypatch.setitem(TASKS, name, getattr(example(TASK), value))
    return name


def test_a_task_in_one_step(task_name):
    """On an uneven batch, in two parts, with rows of zeros, as the trainer may give it."""
    task = make_task(dataclasses.replace(CONFIG, task=task_name))
    assert isinstance(task, Task)
    for leaf, again in zip(task.batch(31), task.batch(31), strict=True):
        np.testing.assert_array_equal(leaf, again)
    batch = task.batch(task.steps_per_epoch() - 1)
    assert batch.weights.sum() == 2 * 101 % 31
    batch = jax.tree.map(lambda leaf: np.concatenate([leaf, np.zeros_like(leaf[:1])]), batch)

    params = unbox(jax.jit(task.init)(jax.random.key(0)))
    optimizer = optax.sgd(0.1)
    step = make_train_step(task, optimizer, seed=0, accumulation_steps=2, ema_decay=None)
    state, sums = jax.jit(step)(new_state(params, optimizer, False), batch, jnp.array(True))
    assert int(state.step) == 1 and bool(sums["finite"][0])
    assert float(sums["loss"][1]) == batch.weights.sum()
    moved = jax.tree.map(lambda new, old: bool(np.abs(new - old).max() > 0), state.params, params)
    assert moved["output"]["kernel"] and moved["embedding"]["embedding"]


@pytest.mark.slow
def test_a_task_from_training_to_prediction(task_name, tmp_path, monkeypatch):
    """The loop and the loading know nothing of it but the protocol."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")  # leave the user's cache alone
    workdir = tmp_path / "run"
    assert train(dataclasses.replace(CONFIG, task=task_name), workdir) == 0
    run = load(workdir, "best")
    scores = run.task.evaluate(run.params, "test", outputs=tmp_path / "outputs.txt")
    assert scores["num_examples"] == 2_000 and scores["accuracy"] > 0.9
    assert len((tmp_path / "outputs.txt").read_text().splitlines()) == 2_000
    assert run.predict(["in twelve days", " ", "vor zwölf Tagen"]) == ["en", "", "de"]
    first, second = next(run.task.candidates(run.params, ["in twelve days"], 2))
    assert first.score > second.score and np.exp(first.score) + np.exp(second.score) == pytest.approx(1, abs=1e-5)
    with pytest.raises(UserError, match="there are two languages"):
        next(run.task.candidates(run.params, ["one"], 3))
