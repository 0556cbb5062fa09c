"""The command line. Verbs import what they need when they are chosen; ``--help`` loads only click.

Answers go to stdout, everything else to stderr. Exit codes: 0 ok, 1 a job failed, 2 usage or
invalid file, 4 can never fit, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rmixer.errors import (
    EXIT_INTERRUPTED,
    EXIT_JOB_FAILED,
    EXIT_NEVER_FITS,
    RmixerError,
    UsageError,
)

if TYPE_CHECKING:
    from rmixer.model import JobSpec
    from rmixer.runner.run import Run, Settings

NOT_FOUND = 127
#: A file system takes 255 bytes; the rest is for the number of a run that is kept.
LONGEST_NAME = 240
#: What is said once the run has been asked to stop, by `RunState.interrupted`.
_NOTICES = {
    "no": "",
    "graceful": "stopping; Ctrl-C once more kills all jobs at once",
    "forced": "killing all jobs",
}


class _RunCommand(click.Command):
    """``run FILE`` or ``run [OPTIONS] -- CMD...``: what stands behind ``--`` is kept apart."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        command: list[str] | None = None
        if "--" in args:
            at = args.index("--")
            args, command = args[:at], args[at + 1 :]
        ctx.obj = command
        return super().parse_args(ctx, args)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="rmixer", prog_name="rmixer")
def cli() -> None:
    """Train many models at once on this machine, as fast as it allows, within its memory."""


@cli.command(cls=_RunCommand, short_help="Run jobs to their end: run FILE, or run -- CMD...")
@click.argument("file", required=False, type=click.Path(readable=False, path_type=Path))
@click.option("--policy", metavar="NAME[:key=value,...]", help="What starts where.")
@click.option("--name", help="Name of the run; after the file unless given.")
@click.option(
    "--runs-dir", type=click.Path(path_type=Path), default="runs", show_default=True,
    help="Where runs are kept.",
)  # fmt: skip
@click.option("--cores", type=click.IntRange(min=1), help="Use so many cores only.")
@click.option("--gpus", metavar="0,1", help="Use these GPUs only.")
@click.option(
    "--sharing", metavar="MODE|0=MODE,...", default="auto", show_default=True,
    help="How jobs share a GPU: auto, mps, time-slice or exclusive.",
)  # fmt: skip
@click.option("--fail-fast", is_flag=True, help="Stop everything when a job has failed.")
@click.option("--dry-run", is_flag=True, help="Check the file and show its jobs; start nothing.")
@click.option("--fresh", is_flag=True, help="Begin anew although the run there is unfinished.")
@click.option("--retry-failed", is_flag=True, help="Go on with a run: its failed jobs again.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.pass_context
def run(ctx: click.Context, /, file: Path | None, **options: Any) -> None:
    """Run every job of FILE side by side, or one command behind `--`.

    The same FILE again goes on with an unfinished run; jobs that outlived a killed runner are taken
    over. `run -- CMD` passes the command's output through and returns its exit code.
    """
    command: list[str] | None = ctx.obj
    if (file is None) == (command is None):
        raise click.UsageError("give a jobs FILE, or -- and a command; not both")
    if command is not None:
        ctx.exit(_run_command(command, options))
    assert file is not None
    ctx.exit(_run_file(file, options))


@cli.command(cls=_RunCommand, short_help="Peak memory per job: estimate FILE, or -- CMD...")
@click.argument("file", required=False, type=click.Path(readable=False, path_type=Path))
@click.option(
    "--device", metavar="cpu|cuda|NAME",
    help="What to train on, instead of what each job says; NAME: a GPU, as in 'NVIDIA H200'.",
)  # fmt: skip
@click.option("--device-memory", metavar="SIZE", help="Of the GPU, for example 80GiB.")
@click.option(
    "--limit",
    type=click.FloatRange(min=1),
    metavar="SECONDS",
    help="Give up after so long: on all models, on each run of a program. By default 120.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.pass_context
def estimate(ctx: click.Context, /, file: Path | None, **options: Any) -> None:
    """How much memory every job of FILE, or one command behind `--`, would need at most.

    Nothing is trained: trainings of ours and PyTorch programs take three steps on tensors that have
    no memory, other programs are really run for a few. Programs do start, so what they write before
    is written. Exit code 1: a program cannot run; 4: a job can never fit.
    """
    from rmixer.estimate.verb import EstimateOptions, estimate_jobs
    from rmixer.report.estimates import render_estimates
    from rmixer.report.write import json_text
    from rmixer.spec import CommandNotFoundError, job_from_command, load_jobs_file

    command: list[str] | None = ctx.obj
    if (file is None) == (command is None):
        raise click.UsageError("give a jobs FILE, or -- and a command; not both")
    as_json = options.pop("as_json")
    wanted = EstimateOptions.parse(**options)
    try:
        jobs = (
            load_jobs_file(file, require_data=False).jobs
            if file is not None
            else [job_from_command(command or [], Path.cwd())]
        )
    except CommandNotFoundError as error:
        click.echo(f"rmixer: {error}", err=True)
        ctx.exit(NOT_FOUND)
    click.echo(f"estimating {len(jobs)} job{'s' * (len(jobs) != 1)}", err=True)
    found = estimate_jobs(jobs, wanted, say=lambda text: click.echo(text, err=True))
    if as_json:
        document = {"schema_version": 1, "jobs": [one.as_dict() for one in found]}
        click.echo(json_text(document), nl=False)
    else:
        click.echo(render_estimates(found))
    refused = [one.refusal for one in found if one.refusal]
    for text in refused:
        click.echo(f"rmixer: {text}", err=True)
    failed = [one for one in found if one.failure]
    for one in failed:
        click.echo(f"rmixer: {one.name} cannot be estimated: {one.failure}", err=True)
    ctx.exit(EXIT_NEVER_FITS if refused else EXIT_JOB_FAILED if failed else 0)


@cli.command(cls=_RunCommand, short_help="What jobs use alone: profile FILE, or -- CMD...")
@click.argument("file", required=False, type=click.Path(readable=False, path_type=Path))
@click.option(
    "--device", metavar="cpu|gpu|NAME",
    help="What to train on, instead of what each job says; NAME: a GPU, as in A100, also of "
    "another machine.",
)  # fmt: skip
@click.option(
    "--seconds", type=click.FloatRange(min=0), default=30.0, show_default=True,
    help="A job may run so long, all its thread counts together; 0: run nothing.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.pass_context
def profile(ctx: click.Context, /, file: Path | None, **options: Any) -> None:
    """What every job of FILE, or one command behind `--`, uses when it runs alone.

    On this machine jobs run for a short while, at one number of threads after the other; keep it
    otherwise idle. For a GPU that is not here the profile is made from a trace and the GPU's peaks.
    Profiles are kept, and later runs start from them. Exit code 1: a job cannot run.
    """
    from rmixer.profile.verb import ProfileOptions, profile_jobs
    from rmixer.report.profiles import render_profiles
    from rmixer.report.write import json_text
    from rmixer.spec import CommandNotFoundError, job_from_command, load_jobs_file

    command: list[str] | None = ctx.obj
    if (file is None) == (command is None):
        raise click.UsageError("give a jobs FILE, or -- and a command; not both")
    as_json = options.pop("as_json")
    try:
        jobs = (
            load_jobs_file(file, require_data=False).jobs
            if file is not None
            else [job_from_command(command or [], Path.cwd())]
        )
    except CommandNotFoundError as error:
        click.echo(f"rmixer: {error}", err=True)
        ctx.exit(NOT_FOUND)
    say = partial(click.echo, err=True)
    document = profile_jobs(jobs, ProfileOptions(say=say, **options)).as_dict()
    click.echo(json_text(document) if as_json else render_profiles(document), nl=not as_json)
    failed = [job for job in document["jobs"] if job["failure"]]
    for job in failed:
        click.echo(f"rmixer: {job['name']} cannot be profiled: {job['failure']}", err=True)
    ctx.exit(EXIT_JOB_FAILED if failed else 0)


@cli.command(short_help="Policies side by side in virtual time: simulate FILE")
@click.argument("file", type=click.Path(readable=False, path_type=Path))
@click.option(
    "--machine", type=click.Path(readable=False, path_type=Path),
    help="A machine file; this machine unless given.",
)  # fmt: skip
@click.option(
    "--policy", "policies", multiple=True, metavar="NAME[:key=value,...]",
    help="What starts where; give it once per policy to compare.",
)  # fmt: skip
@click.option(
    "--world", default="network", show_default=True, metavar="NAME[:key=value,...]",
    help="What decides the true rates.",
)  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="Of all that is drawn.")
@click.option(
    "--load", type=click.FloatRange(min=0, min_open=True), metavar="SHARE",
    help="Jobs arrive over time, at this share of the attainable throughput.",
)  # fmt: skip
@click.option(
    "--like", type=click.Path(readable=False, path_type=Path),
    help="For a trace: a jobs file whose jobs say what those of the trace use.",
)  # fmt: skip
@click.option("--first", type=click.IntRange(min=1), help="Of a trace only so many jobs.")
@click.option("--gpu-memory", metavar="SIZE", help="For a trace: of jobs that do not say it.")
@click.option(
    "--figure", type=click.Path(path_type=Path), metavar="PATH.svg|.html",
    help="Draw bars with the limits, and who ran where.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def simulate(as_json: bool, **options: Any) -> None:
    """What policies would make of the jobs of FILE, on a machine that need not be there.

    Every job needs a `profile` that says how long it takes alone, and what it uses. Nothing is
    started. FILE may also be the trace of a cluster (Gavel, Philly, Muri, Alibaba). Exit code 4: a
    job can never fit on the machine.
    """
    from rmixer.report.comparison import render_comparison
    from rmixer.report.comparison_figure import check_form, write_figure
    from rmixer.report.write import json_text
    from rmixer.simulate.compare import POLICIES
    from rmixer.simulate.verb import answer

    policies = options.pop("policies") or POLICIES
    options["gpu_memory"] = _size("--gpu-memory", options["gpu_memory"])
    figure: Path | None = options.pop("figure")
    if figure is not None:
        check_form(figure)
    found = answer(options.pop("file"), policies=policies, **options)
    if figure is not None:
        write_figure(figure, found.document, found.spans)
    text = json_text(found.document) if as_json else render_comparison(found.document)
    click.echo(text, nl=not as_json)


@cli.command(short_help="What would be placed where, and why: plan FILE")
@click.argument("file", type=click.Path(readable=False, path_type=Path))
@click.option("--policy", metavar="NAME[:key=value,...]", help="What starts where.")
@click.option(
    "--machine", type=click.Path(readable=False, path_type=Path),
    help="A machine file; this machine unless given.",
)  # fmt: skip
@click.option("--cores", type=click.IntRange(min=1), help="Use so many cores only.")
@click.option("--gpus", metavar="0,1", help="Use these GPUs only.")
@click.option("--explain", metavar="JOB", help="What is believed of a job, and why it is there.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def plan(as_json: bool, **options: Any) -> None:
    """What `run` would start now, on which device, and why the other jobs of FILE wait.

    No job is started. Rates are predicted where it is known what the jobs use; times and limits
    where the length of every job is known: from earlier runs, or its `profile`. Exit code 4: a job
    can never fit.
    """
    from rmixer.report.planned import render_plan
    from rmixer.report.write import json_text
    from rmixer.simulate.plan import plan_file

    options["gpus"] = _gpus(options["gpus"])
    document = plan_file(options.pop("file"), **options)
    click.echo(json_text(document) if as_json else render_plan(document), nl=not as_json)


@cli.command(short_help="The JSON schema of jobs files, for editors")
def schema() -> None:
    """The JSON schema that jobs files are checked against, on stdout.

    In VS Code with the YAML extension: `rmixer schema > jobs.schema.json`, and in the first line of
    a jobs file `# yaml-language-server: $schema=jobs.schema.json`.
    """
    from rmixer.report.write import json_text
    from rmixer.spec import json_schema

    click.echo(json_text(json_schema()), nl=False)


@cli.command(short_help="This machine, and what it lacks")
@click.argument("file", required=False, type=click.Path(readable=False, path_type=Path))
@click.option("--measure-context", is_flag=True, help="Measure a CUDA context on every GPU.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def doctor(file: Path | None, measure_context: bool, as_json: bool) -> None:
    """What jobs have on this machine, what it lacks, and how that is mended.

    With a jobs FILE also the interpreters of its jobs. Exit code 1: there is a problem.
    """
    from rmixer.report.doctor import examine, render_examination
    from rmixer.report.write import json_text
    from rmixer.spec import load_jobs_file

    jobs = load_jobs_file(file, require_data=False).jobs if file is not None else ()
    document = examine(jobs, measure_contexts=measure_context)
    click.echo(json_text(document) if as_json else render_examination(document), nl=not as_json)
    if document["problems"]:
        sys.exit(EXIT_JOB_FAILED)


@cli.command(short_help="Table, figures and HTML of a run")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--runs-dir", type=click.Path(path_type=Path), default="runs", show_default=True,
    help="Where runs are kept.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="The document of report.json on stdout.")
@click.option("--csv", "as_csv", is_flag=True, help="One row per job on stdout.")
@click.option("--sort", metavar="COLUMN", help="Rank the rows of --csv, for example by auc.")
def report(run: Path, runs_dir: Path, as_json: bool, as_csv: bool, sort: str | None) -> None:
    """Report on RUN, a finished or running run: its name, or its directory.

    Writes report.json and report.html into the run's directory.
    """
    from rmixer.paths import RunPaths
    from rmixer.report.ranking import to_csv
    from rmixer.report.summary import render_summary
    from rmixer.report.write import json_text, write_report

    if sort is not None and not as_csv:
        raise click.UsageError("--sort goes with --csv")
    root = run if (run / "events.jsonl").exists() else runs_dir / run
    paths = RunPaths(root)
    if not paths.events.exists():
        raise UsageError(f"{root}: no run there{_known_runs(runs_dir)}")
    document = write_report(paths)
    if as_csv:
        click.echo(to_csv(document, sort), nl=False)
    elif as_json:
        click.echo(json_text(document), nl=False)
    else:
        click.echo(render_summary(document))


@cli.command(short_help="Remove old runs")
@click.argument("names", nargs=-1, metavar="[RUN]...")
@click.option(
    "--runs-dir", type=click.Path(path_type=Path), default="runs", show_default=True,
    help="Where runs are kept.",
)  # fmt: skip
@click.option("--older-than", metavar="TIME", help="Only those that ended so long ago, as in 30d.")
@click.option("--all", "everything", is_flag=True, help="All finished ones.")
@click.option("--unfinished", is_flag=True, help="Also those that could be gone on with.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def clean(
    names: tuple[str, ...],
    runs_dir: Path,
    older_than: str | None,
    everything: bool,
    unfinished: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Remove finished runs: logs, reports, checkpoints, and the models that they trained.

    A run that is being worked on stays, also if only a job of it is left; exit code 1 if it was
    named.
    """
    from rmixer.report.cleaned import document_of, render
    from rmixer.report.write import json_text
    from rmixer.runner.clean import chosen, old_runs, remove

    seconds = _either_named_or_old("runs", names, everything, older_than)
    meant = chosen(old_runs(runs_dir), names, older_seconds=seconds, unfinished=unfinished)
    gone = [run for run in meant if (run.doing != "running" if dry_run else remove(runs_dir, run))]
    kept = [run.as_dict() for run in meant if run not in gone]
    document = document_of(runs_dir, [run.as_dict() for run in gone], kept, dry_run=dry_run)
    click.echo(json_text(document) if as_json else render(document), nl=not as_json)
    if kept:
        sys.exit(EXIT_JOB_FAILED)


def _either_named_or_old(
    what: str, names: tuple[str, ...], everything: bool, older_than: str | None
) -> float | None:
    """The seconds of ``--older-than``; an error unless things are named or chosen, not both."""
    from rmixer.resources import parse_seconds

    if bool(names) == (everything or older_than is not None):
        raise click.UsageError(f"name {what}, or give --all or --older-than; not both")
    try:
        return None if older_than is None else parse_seconds(older_than)
    except ValueError as error:
        raise UsageError(f"--older-than {error}") from None


@cli.group(short_help="Parsed data sets: ls, rm")
def cache() -> None:
    """The data sets that were parsed once and that jobs map since."""


@cache.command("ls", short_help="What there is")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def cache_ls(as_json: bool) -> None:
    """All data sets, the one used last first."""
    from rmixer import catalog, paths
    from rmixer.report.caches import document_of, render_entries
    from rmixer.report.write import json_text

    folder = paths.cache_dir()
    document = document_of(folder, [one.as_dict() for one in catalog.stock().entries(folder)])
    click.echo(json_text(document) if as_json else render_entries(document), nl=not as_json)


@cache.command("rm", short_help="Remove some")
@click.argument("names", nargs=-1, metavar="[KEY|FILE]...")
@click.option("--all", "everything", is_flag=True, help="All that are not in use.")
@click.option("--older-than", metavar="TIME", help="Those not used for so long, as in 30d.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def cache_rm(
    names: tuple[str, ...], everything: bool, older_than: str | None, dry_run: bool, as_json: bool
) -> None:
    """Remove data sets, by KEY (its beginning is enough) or by the FILE that they were made from.

    They are parsed again when a job needs them. What a process uses now stays; exit code 1 if that
    was asked for by name.
    """
    from rmixer import catalog, paths
    from rmixer.report.caches import removal_of, render_removal
    from rmixer.report.write import json_text

    unused = _either_named_or_old("data sets", names, everything, older_than)
    folder, stock = paths.cache_dir(), catalog.stock()
    found = stock.entries(folder)
    meant = stock.chosen(found, names, everything=everything, unused_seconds=unused)
    removed = [one for one in meant if (not one.in_use if dry_run else stock.remove(folder, one))]
    kept = [one for one in meant if one not in removed]
    gone, stay = ([one.as_dict() for one in some] for some in (removed, kept))
    document = removal_of(folder, gone, stay, dry_run=dry_run)
    click.echo(json_text(document) if as_json else render_removal(document), nl=not as_json)
    if kept and names:
        sys.exit(EXIT_JOB_FAILED)


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point: maps our errors to a line on stderr and their exit code."""
    with _exit_on_signals():
        try:
            cli.main(args=list(arguments) if arguments is not None else None, prog_name="rmixer")
        except RmixerError as error:
            click.echo(f"rmixer: {error}", err=True)
            sys.exit(error.exit_code)


@contextmanager
def _exit_on_signals() -> Iterator[None]:
    """Ctrl-C and its like while no job runs: nothing to stop, so only the exit code is owed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: object) -> None:  # noqa: ARG001
        sys.exit(EXIT_INTERRUPTED)

    defaults = (signal.SIG_DFL, signal.default_int_handler)
    before = {
        number: signal.signal(number, leave)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) in defaults
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- run ------------------------------------------------------------------------------------------


def _run_file(file: Path, options: dict[str, Any]) -> int:
    from rmixer.spec import load_jobs_file

    jobs_file = load_jobs_file(file)
    policy = jobs_file.policy if options["policy"] is None else options["policy"]
    name = _run_name(file.stem if options["name"] is None else options["name"])
    settings = _settings(
        options, name=name, policy=policy, digest=jobs_file.digest, text=jobs_file.text
    )
    if options["dry_run"]:
        return _dry_run(jobs_file.jobs, settings, as_json=options["as_json"])
    return _execute(jobs_file.jobs, settings, as_json=options["as_json"])


def _settings(options: dict[str, Any], **more: Any) -> Settings:
    from rmixer.catalog import build_policy
    from rmixer.runner.run import Settings

    if more.get("policy") is not None:
        build_policy(more["policy"])  # an unknown one is told before anything else happens
    kept = ("runs_dir", "cores", "sharing", "fail_fast", "fresh", "retry_failed")
    return Settings(gpus=_gpus(options["gpus"]), **{k: options[k] for k in kept}, **more)


def _execute(jobs: Sequence[JobSpec], settings: Settings, *, as_json: bool) -> int:
    """Run a batch with something to look at meanwhile, and the answer at the end."""
    from rmixer.report.summary import render_summary
    from rmixer.report.write import json_text
    from rmixer.runner.run import Run, stop_on_signals

    this = Run(jobs, settings)
    close = _show(this)

    def answer(document: dict[str, Any]) -> None:
        close()
        with suppress(OSError):  # nobody reads it any more; the exit code still counts
            if as_json:
                click.echo(json_text(document), nl=False)
            click.echo(render_summary(document), err=as_json)

    this.on_report = answer
    try:
        with stop_on_signals(this):
            this.execute()
    finally:
        close()
    return this.exit_code


def _show(this: Run) -> Callable[[], None]:
    """Show the run while it runs; what to call at its end."""
    from rmixer.report.plain import display_for
    from rmixer.report.view import Display, view_of
    from rmixer.state import RunState

    displays: list[Display] = []
    newest: dict[str, Any] = {}
    gone = False

    def refresh(state: RunState, sample: dict[str, Any]) -> None:
        nonlocal gone
        if gone:
            return
        try:
            if not displays:
                displays.append(display_for(state.node))
            view = view_of(state.jobs.values(), state.node, state.at, sample)
            displays[0].update(replace(view, notice=_NOTICES[state.interrupted]))
        except OSError:  # the terminal, or the reader of the pipe, has gone; the jobs go on
            gone = True

    def close() -> None:
        with suppress(OSError):
            if displays:
                displays[0].close()

    def on_event(event: Any, state: RunState) -> None:
        if event.type not in {"began", "submitted"}:
            refresh(state, newest)

    def on_look(state: RunState, look: Any) -> None:
        newest.clear()
        newest.update(look.sample)
        refresh(state, {**newest, "at": look.sample["at"]})

    this.on_event, this.on_look = on_event, on_look
    return close


def _run_command(command: list[str], options: dict[str, Any]) -> int:
    """One command in the foreground, its output passed through, its exit code returned."""
    from rmixer.runner.passthrough import run_command
    from rmixer.spec import CommandNotFoundError, command_name, job_from_command

    if not command:
        raise click.UsageError("there is no command behind --")
    try:
        job = job_from_command(command, Path.cwd())
    except CommandNotFoundError as error:
        click.echo(f"rmixer: {error}", err=True)
        return NOT_FOUND
    name = _run_name(command_name(command) if options["name"] is None else options["name"])
    settings = _settings(options, name=name, policy=options["policy"])
    if options["dry_run"]:
        return _dry_run([job], settings, as_json=options["as_json"])
    return run_command(job, settings, as_json=options["as_json"])


def _dry_run(jobs: Sequence[JobSpec], settings: Settings, *, as_json: bool) -> int:
    """Check that every job fits, and say what would run."""
    import json

    from rmixer import paths
    from rmixer.monitor import discover_node
    from rmixer.resources import format_bytes
    from rmixer.runner.admit import admit, trace_unknown
    from rmixer.store import Store

    node = discover_node(cores=settings.cores, gpus=settings.gpus)
    store = Store(paths.store_path())
    admitted = admit(jobs, node, store, trace_unknown(jobs, node, store))
    if as_json:
        rows = [
            {
                "id": one.spec.id,
                "name": one.spec.name,
                "kind": one.spec.kind,
                "reserved_bytes": one.estimate.memory,
                "source": one.estimate.source,
            }
            for one in admitted
        ]
        click.echo(json.dumps({"schema_version": 1, "jobs": rows}, indent=2))
        return 0
    for one in admitted:
        memory = f"{format_bytes(one.estimate.memory)} ({one.estimate.source})"
        click.echo(f"{one.spec.id}  {one.spec.kind}  {memory}")
    click.echo(f"{len(admitted)} jobs; nothing was started", err=True)
    return 0


def _run_name(text: str) -> str:
    """A run's name, which is a directory's name too."""
    name = text.strip()
    if not name or name.startswith(".") or "/" in name or not name.isprintable():
        raise UsageError(
            f"{text!r} cannot name a run: it must be a plain directory name; give one with --name"
        )
    if len(name.encode(errors="surrogateescape")) > LONGEST_NAME:
        raise UsageError(
            f"{name[:20]!r}... cannot name a run: it is longer than {LONGEST_NAME} bytes; "
            "give a shorter --name"
        )
    return name


def _size(option: str, text: str | None) -> int:
    from rmixer.resources import parse_bytes

    try:
        return 0 if text is None else parse_bytes(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None


def _gpus(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise UsageError(f"--gpus {text}: write indices, for example 0,1") from None


def _known_runs(runs_dir: Path) -> str:
    if not runs_dir.is_dir():
        return f" (there is no directory {runs_dir})"
    names = sorted(path.parent.name for path in runs_dir.glob("*/events.jsonl"))
    return f" (runs there are: {', '.join(names)})" if names else " (there are none yet)"


if __name__ == "__main__":
    main()
