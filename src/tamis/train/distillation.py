"""Distillation by a recipe: `tamis distill`.

A student learns from a language model on a corpus, or from a ranker on queries with candidates, or first from
one and then from the other. The output folder has the last phase, as after `tamis train`; its subfolder `lm/`
has the phase before. A run that was killed resumes in its current phase.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import xxhash
from torch import Tensor, nn

from tamis.base.errors import InputError
from tamis.models.architectures.mono import Mono, form_of
from tamis.models.checkpoint import TOKENIZER, Checkpoint, load_checkpoint, save_checkpoint
from tamis.models.config import read_raw_config
from tamis.models.encoder import Encoder
from tamis.models.feed import padded
from tamis.models.network import Network, Pointwise
from tamis.models.settings import changed
from tamis.models.tokenizer import Tokenizer, open_tokenizer
from tamis.train.batch import RankingBatch
from tamis.train.corpus_task import CorpusTask
from tamis.train.dev import DevRun, open_dev
from tamis.train.distill import CorpusDistillation, Distiller, Projections, Weights, student_from
from tamis.train.distill_recipe import LM, DistillRecipe, Ranker, Terms
from tamis.train.loop import Part, Result, fit, total_steps
from tamis.train.masked import read_vocabulary
from tamis.train.pretrain_task import load_or_draw, read, with_dropout
from tamis.train.processes import Processes, own_device
from tamis.train.ranking import RankingTask
from tamis.train.ranking_loss import ranking_loss
from tamis.train.recipe import Loss, Model, Recipe, in_steps
from tamis.train.sources import Examples as RankingExamples
from tamis.train.sources import read_examples
from tamis.train.start import begun, check_segments, load_start
from tamis.train.state import LAST, has_state, require_new
from tamis.train.watch import Watch

BEFORE = "lm"  # the folder of the first phase of two


def distill(
    recipe: DistillRecipe,
    out: str | Path,
    *,
    device: str = "auto",
    resume: bool = False,
    watch: Watch | None = None,
) -> Result:
    """Train a student by a recipe and write it to `out`: see `fit`."""
    out, watch = Path(out), watch or Watch()
    before = out / BEFORE
    require_new(out, resume)
    if not has_state(out):  # else the first phase is done, and only its model is needed
        require_new(before, resume)
    device = own_device(device)
    # with several processes the device is already chosen, or is the CPU
    with Processes(torch.device("cpu" if device == "auto" else device)) as processes:
        if recipe.ranker is None:
            assert recipe.lm is not None
            return _learn_language(recipe.lm, load_student(recipe), out, device, resume, watch)
        over = recipe.lm is not None and has_state(out)  # then its corpus is not read again
        start = _after_language(recipe, before) if over else load_student(recipe)
        lesson = _lesson(recipe.ranker, start, watch)
        if recipe.lm is not None and not over:
            _learn_language(recipe.lm, start, before, device, resume, watch)
            processes.meet()  # the first process has written the model that all continue with
            start = _after_language(recipe, before)
        task = _ranker_task(recipe, lesson, start, device)
        plan, dev = lesson.plan, lesson.plan.dev
        steps, every = total_steps(plan.optimiser), dev.every if dev else None
        with watch.training("Training the student", steps, dev.measure if dev else "") as tell:
            return fit(
                task, plan.optimiser, plan.run, out, evaluate_every=every, resume=resume, progress=tell
            )


def load_student(recipe: DistillRecipe) -> Checkpoint:
    """The student before training."""
    phase = recipe.lm or recipe.ranker
    assert phase is not None
    student, first = recipe.student, recipe.first_teacher
    if student.start is not None:
        first = Model(student.start, student.revision)
    assert first is not None
    model = changed(first, labels=student.labels, third_segment=student.third_segment, layers=student.keep)
    start = load_or_draw(model, student.random, phase.run.seed, forms=recipe.lm is None)
    return start if student.layers is None else student_from(start, student.layers)


def _after_language(recipe: DistillRecipe, before: Path) -> Checkpoint:
    """The student after the language model phase. Its ranking head is new if it started without one."""
    assert recipe.ranker is not None
    return load_start(Model(str(before / LAST)), recipe.ranker.run.seed, forms=True)


# From a language model.


def _learn_language(
    phase: LM, start: Checkpoint, out: Path, device: str, resume: bool, watch: Watch
) -> Result:
    task = language_task(phase, start, device, watch)
    with watch.training("Distilling the language model", total_steps(phase.optimiser)) as progress:
        return fit(task, phase.optimiser, phase.run, out, resume=resume, progress=progress)


def language_task(phase: LM, start: Checkpoint, device: str, watch: Watch) -> CorpusTask:
    """The task of a student that learns from a language model on a corpus."""
    teacher = load_start(Model(phase.teacher, phase.revision), phase.run.seed)
    tokenizer = open_tokenizer(start)
    _require_vocabulary(teacher, tokenizer)
    encoder = Encoder.from_checkpoint(with_dropout(start, phase.optimiser.dropout))
    distiller = _distiller(encoder, Encoder.from_checkpoint(teacher), phase.terms, phase.run.seed)
    corpus = read(phase.corpus, tokenizer, watch)
    objective = CorpusDistillation(
        distiller,
        corpus,
        read_vocabulary(tokenizer),
        size=phase.run.batch,
        length=phase.length,
        seed=phase.run.seed,
    )

    def save(folder: Path) -> None:
        save_checkpoint(replace(start, tensors=encoder.tensors()), folder, ranks=not start.new_head)

    seen = f"{phase} {start.fingerprint} {teacher.fingerprint} {corpus.fingerprint}"
    return CorpusTask(objective, start, phase.optimiser, phase.run, identity=seen, save=save, device=device)


def _distiller(student: Encoder, teacher: Encoder, terms: Terms, seed: int) -> Distiller:
    """The distiller that compares the internal states of both models."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # torch draws new layers from its own generator
        projections = Projections(student.config.hidden, teacher.config.hidden)
    # several processes would wait for the gradients of unused parameters
    projections.embedding.requires_grad_(terms.embedding > 0)
    projections.hidden.requires_grad_(terms.hidden > 0)
    weights = Weights(terms.embedding, terms.hidden, terms.attention, prediction=0.0)
    return Distiller(student, teacher, projections, terms.layers, weights)


# From a ranker, or from labels.


class Taught(nn.Module):
    """A ranker whose loss uses a teacher's scores of the same inputs."""

    def __init__(self, student: Network, teacher: Network, loss: Loss) -> None:
        super().__init__()
        self.network, self.loss = student, loss
        teacher.packed = student.packed
        # in a tuple, as in `Distiller`: it is not trained
        self._teacher = (teacher.requires_grad_(False).eval(),)

    def forward(self, batch: RankingBatch) -> Tensor:
        with torch.no_grad():
            theirs = self._teacher[0](batch.inputs)
        return _loss(self.network(batch.inputs), theirs, batch, self.loss)


class TaughtInside(nn.Module):
    """The same, with the terms of a distiller added to the loss."""

    def __init__(self, distiller: Distiller, loss: Loss) -> None:
        super().__init__()
        self.distiller, self.loss = distiller, loss

    def forward(self, batch: RankingBatch) -> Tensor:
        device = self.distiller.student.embeddings.word.device
        compared = self.distiller.compare(*padded(batch.inputs, device))
        inside = self.distiller.total(compared.terms)
        return inside + _loss(compared.student, compared.teacher, batch, self.loss)


def _loss(own: Tensor, theirs: Tensor, batch: RankingBatch, loss: Loss) -> Tensor:
    scores = theirs.float().cpu().numpy()
    return ranking_loss(own, replace(batch, teacher=scores), loss)


class RankerDistillation:
    """A `RankingTask` with the same examples, dev run and student, but another loss."""

    def __init__(self, task: RankingTask, module: nn.Module, identity: str) -> None:
        self.task, self.module = task, module
        self.device, self.autocast = task.device, task.autocast
        self.identity = xxhash.xxh3_128_hexdigest(f"{task.identity} {identity}".encode())

    def parts(self, step: int, rank: int, world: int) -> Sequence[Part]:
        return self.task.parts(step, rank, world)

    def save(self, folder: Path) -> None:
        self.task.save(folder)

    def evaluate(self) -> float:
        return self.task.evaluate()


@dataclass(frozen=True, slots=True)
class _Lesson:
    """Everything that the student of a ranker learns from."""

    phase: Ranker
    plan: Recipe
    teacher: Checkpoint | None
    examples: RankingExamples
    dev: DevRun | None


def _lesson(phase: Ranker, start: Checkpoint, watch: Watch) -> _Lesson:
    """Read and check everything that a ranker's phase needs, before hours are spent on the phase before
    it."""
    tokenizer, plan, teacher = open_tokenizer(start), phase.recipe(), None
    pairs = plan.examples.in_pairs
    check_segments(start, plan)
    if phase.teacher is not None:
        teacher = load_ranker(phase.teacher, phase.revision)
        _check_reads(teacher, start, tokenizer, pairs=pairs)
        if phase.terms is not None and phase.terms.count:
            with torch.device("meta"):  # only shapes are compared
                _distiller(Encoder(start.config), Encoder(teacher.config), phase.terms, phase.run.seed)
        shorter = min(phase.limits.total, teacher.config.max_length)
        plan = changed(plan, limits=changed(phase.limits, total=shorter))
    dev = None
    if plan.dev is not None:
        dev = open_dev(plan.dev)
    examples = read_examples(plan, tokenizer, watch)
    return _Lesson(phase, in_steps(plan, examples.stream.epoch), teacher, examples, dev)


def _ranker_task(
    recipe: DistillRecipe, lesson: _Lesson, start: Checkpoint, device: str
) -> RankerDistillation:
    task = RankingTask(lesson.plan, begun(start, lesson.plan), lesson.examples, lesson.dev, device)
    teacher = lesson.teacher
    seen = f"{recipe} {teacher and teacher.fingerprint}"  # of the phase before too, which is not repeated
    return RankerDistillation(task, _taught(task, teacher, lesson.phase), seen)


def _taught(task: RankingTask, teacher: Checkpoint | None, phase: Ranker) -> nn.Module:
    """The student of a task, with a loss that uses a teacher's scores and terms."""
    if teacher is None:
        return task.module
    network, theirs = task.module.network, Pointwise.of(teacher).to(task.device)
    if phase.terms is None or not phase.terms.count:
        return Taught(network, theirs, phase.loss)
    assert network.encoder is not None
    distiller = _distiller(network.encoder, theirs.encoder, phase.terms, phase.run.seed)
    return TaughtInside(distiller, phase.loss).to(task.device)


def load_ranker(name: str, revision: str | None) -> Checkpoint:
    """Load a teacher. Unlike a start it must have a head, trained to score single texts or pairs."""
    checkpoint = load_checkpoint(load_start(Model(name, revision), seed=0, forms=True).folder)
    kind = checkpoint.architecture
    if kind.name != "mono" and kind.name not in Mono.reads:
        raise InputError(
            f"the teacher {name} is a {kind.kind} model, which does not score a text by itself",
            remedy="learn from a run of its scores",
        )
    return Mono.adopted(checkpoint) if kind.name == "cascade" else checkpoint


# Requirements on both models.


def _check_reads(teacher: Checkpoint, start: Checkpoint, tokenizer: Tokenizer, *, pairs: bool) -> None:
    """Raise an error unless the teacher can read the student's inputs."""
    _require_vocabulary(teacher, tokenizer)
    wanted, found = min(start.config.segments, 3 if pairs else 2), teacher.config.segments
    if 0 < found < wanted:  # a model without segments ignores them
        raise InputError(
            f"inputs of {wanted} segments for a teacher of {found} ({teacher.folder})",
            remedy="use a student without third_segment, or a teacher with it",
        )
    theirs, own = form_of(teacher), form_of(start)
    if theirs != own:
        raise InputError(
            f"the teacher {teacher.folder} reads inputs of the form {theirs}, the student of the form {own}",
            remedy="start the student from the teacher, or learn from a run of its scores",
        )


def _require_vocabulary(teacher: Checkpoint, tokenizer: Tokenizer) -> None:
    own, theirs = (read_raw_config(Path(each.folder) / TOKENIZER) for each in (tokenizer, teacher))
    if own.get("model", {}).get("vocab") != theirs.get("model", {}).get("vocab"):
        raise InputError(
            f"the teacher {teacher.folder} has another vocabulary than the student ({tokenizer.folder})",
            remedy="start from a model with the teacher's, or learn from a run of its scores",
        )
