"""The peer's side of the benchmarks, MarianMTModel of transformers on torch: started by them. See measure.py."""

import os
from collections.abc import Callable
from typing import Any

import measure
from measure import BATCH_SIZE, SOURCE_LENGTH, TARGET_LENGTH, VOCAB_SIZE

PAD_ID, EOS_ID = 0, 2


def prepare(benchmark: str) -> measure.Offer:
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    torch.set_num_threads(os.cpu_count() or 1)
    model = transformers.MarianMTModel(
        transformers.MarianConfig(
            vocab_size=VOCAB_SIZE,
            d_model=measure.D_MODEL,
            encoder_layers=measure.NUM_LAYERS,
            decoder_layers=measure.NUM_LAYERS,
            encoder_attention_heads=measure.NUM_HEADS,
            decoder_attention_heads=measure.NUM_HEADS,
            encoder_ffn_dim=measure.D_FF,
            decoder_ffn_dim=measure.D_FF,
            activation_function="relu",
            dropout=measure.DROPOUT_RATE,
            attention_dropout=0.0,
            activation_dropout=0.0,
            scale_embedding=True,
            share_encoder_decoder_embeddings=True,
            tie_word_embeddings=True,
            max_position_embeddings=max(SOURCE_LENGTH, TARGET_LENGTH) + 1,
            pad_token_id=PAD_ID,
            eos_token_id=EOS_ID,
            decoder_start_token_id=PAD_ID,
            forced_eos_token_id=None,
        )
    )
    sources = torch.randint(4, VOCAB_SIZE, (BATCH_SIZE, SOURCE_LENGTH))
    if benchmark == "train_step":
        jobs = {"step": training_step(torch, model, sources)}
    else:
        jobs = {f"beam_{size}": decoding(torch, model, sources, size) for size in (1, 4)}
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    return measure.Offer({**jobs, "products": products(torch)}, versions, {})


def training_step(torch: Any, model: Any, sources: Any) -> measure.Job:
    """Forward, smoothed cross-entropy, backward, Adam."""
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9)
    targets = torch.randint(4, VOCAB_SIZE, (BATCH_SIZE, TARGET_LENGTH))
    inputs = torch.nn.functional.pad(targets[:, :-1], (1, 0), value=PAD_ID)

    def run() -> None:
        optimizer.zero_grad(set_to_none=True)
        logits = model(input_ids=sources, decoder_input_ids=inputs, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(
            logits.reshape(-1, VOCAB_SIZE), targets.reshape(-1), label_smoothing=measure.LABEL_SMOOTHING
        )
        loss.backward()
        optimizer.step()
        if not torch.isfinite(loss):
            raise RuntimeError("the loss is not finite")

    return lambda: measure.seconds(run)


def decoding(torch: Any, model: Any, sources: Any, beam_size: int) -> measure.Job:
    """``generate``, which is kept from ending an output before it has all its tokens."""
    model.eval()

    def run() -> None:
        with torch.inference_mode():
            found = model.generate(
                input_ids=sources,
                num_beams=beam_size,
                do_sample=False,
                min_new_tokens=TARGET_LENGTH,
                max_new_tokens=TARGET_LENGTH,
            )
        if found.shape != (BATCH_SIZE, 1 + TARGET_LENGTH) or (found == EOS_ID).any():
            raise RuntimeError(f"outputs of another length than {TARGET_LENGTH}")

    return lambda: measure.seconds(run)


def products(torch: Any) -> measure.Job:
    """The matrix products whose rate is the machine's."""

    def product(m: int, k: int, n: int) -> Callable[[], Any]:
        left, right = torch.full((m, k), 0.5), torch.full((k, n), 0.5)
        return lambda: left @ right

    runs = {sizes: product(*sizes) for sizes in measure.PRODUCTS}
    return lambda: measure.best_product_rate(runs)


if __name__ == "__main__":
    measure.serve(prepare)
