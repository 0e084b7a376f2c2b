"""Pretraining by a recipe: `tamis pretrain`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tamis.models.architectures.mono import form_of, in_form
from tamis.models.checkpoint import Checkpoint, save_checkpoint, with_third_segment
from tamis.models.encoder import Encoder
from tamis.models.tokenizer import Tokenizer, open_tokenizer
from tamis.train.corpus_task import CorpusTask, open_corpus
from tamis.train.loop import Result, fit, total_steps
from tamis.train.masked import Sentences, read_sentences, read_vocabulary
from tamis.train.objective import Objective, Together
from tamis.train.pretrain import (
    MaskedLanguageModelling,
    PretrainingModel,
    RepresentativeWords,
    save_pretraining,
    with_new_heads,
    with_stored_heads,
)
from tamis.train.pretrain_recipe import PretrainRecipe, Random
from tamis.train.processes import own_device
from tamis.train.recipe import Model
from tamis.train.rop import Bags, read_bags
from tamis.train.scratch import from_scratch
from tamis.train.start import load_start
from tamis.train.state import require_new
from tamis.train.watch import Watch


def pretrain(
    recipe: PretrainRecipe,
    out: str | Path,
    *,
    device: str = "auto",
    resume: bool = False,
    watch: Watch | None = None,
) -> Result:
    """Pretrain a model on a corpus and write it to `out`: see `fit`. `tamis train` can start from it."""
    watch = watch or Watch()
    require_new(Path(out), resume)
    task = _task(recipe, own_device(device), watch)
    with watch.training("Pretraining", total_steps(recipe.optimiser)) as progress:
        return fit(task, recipe.optimiser, recipe.run, out, resume=resume, progress=progress)


def _task(recipe: PretrainRecipe, device: str, watch: Watch) -> CorpusTask:
    """A recipe's model, corpus and objectives."""
    learn, seed = recipe.objective.learn, recipe.run.seed
    start = load_or_draw(Model(recipe.model.start, recipe.model.revision), recipe.model.random, seed)
    tokenizer = open_tokenizer(start)
    dropping = with_dropout(start, recipe.optimiser.dropout)
    objectives: list[Objective[Any]] = []
    seen = f"{recipe} {start.fingerprint}"
    save: Callable[[Path], None]
    if "mlm" in learn:
        model = with_new_heads(dropping, seed) if recipe.model.random else with_stored_heads(dropping, seed)
        encoder = model.encoder
        corpus = read(recipe.data.corpus, tokenizer, watch)
        objectives.append(_masked(recipe, model, corpus, tokenizer))
        seen += f" {corpus.fingerprint}"

        def save(folder: Path) -> None:
            save_pretraining(model, start, folder, ranks="rop" in learn)

    else:
        encoder = Encoder.from_checkpoint(dropping)

        def save(folder: Path) -> None:
            save_checkpoint(replace(start, tensors=encoder.tensors()), folder)

    if "rop" in learn:
        with watch.reading("the corpus's words", "documents") as advance:
            bags = read_bags(open_corpus(recipe.data.corpus, advance), tokenizer)
        objectives.append(_representative(recipe, encoder, bags, tokenizer))
        seen += f" {bags.fingerprint}"
    objective = objectives[0] if len(objectives) == 1 else Together(objectives)
    return CorpusTask(objective, start, recipe.optimiser, recipe.run, identity=seen, save=save, device=device)


def _masked(
    recipe: PretrainRecipe, model: PretrainingModel, corpus: Sentences, tokenizer: Tokenizer
) -> MaskedLanguageModelling:
    return MaskedLanguageModelling(
        model,
        corpus,
        read_vocabulary(tokenizer),
        size=recipe.run.batch,
        length=min(recipe.objective.length, model.encoder.config.max_length),
        seed=recipe.run.seed,
        next_sentence="nsp" in recipe.objective.learn,
    )


def _representative(
    recipe: PretrainRecipe, encoder: Encoder, bags: Bags, tokenizer: Tokenizer
) -> RepresentativeWords:
    return RepresentativeWords(
        encoder,
        bags,
        tokenizer.special,
        size=recipe.run.batch,
        length=recipe.objective.length,
        seed=recipe.run.seed,
        mean_size=recipe.objective.mean_size,
        mu=recipe.objective.mu,
    )


# Also used by distillation.


def load_or_draw(model: Model, random: Random | None, seed: int, *, forms: bool = False) -> Checkpoint:
    """The checkpoint that training starts from, or random weights in its shape or another; for `forms` see
    `load_start`."""
    if random is None:
        return load_start(model, seed, forms=forms)
    folder = Path(model.start)
    if not folder.is_dir():
        folder = load_start(Model(model.start, model.revision), seed, forms=True).folder
    drawn = from_scratch(
        folder,
        layers=random.layers,
        hidden=random.hidden,
        heads=random.heads,
        feed_forward=random.feed_forward,
        labels=model.labels,
        seed=seed,
    )
    drawn = in_form(drawn, form_of(drawn) if forms else "default")
    return with_third_segment(drawn, seed) if model.third_segment else drawn


def with_dropout(checkpoint: Checkpoint, rate: float) -> Checkpoint:
    return replace(checkpoint, config=replace(checkpoint.config, dropout=rate))


def read(corpus: tuple[str, ...], tokenizer: Tokenizer, watch: Watch) -> Sentences:
    """Read the sentences of a corpus."""
    with watch.reading("the corpus", "documents") as advance:
        return read_sentences(open_corpus(corpus, advance), tokenizer)
