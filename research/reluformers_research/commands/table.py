r"""Run the rows of a paper's table with several seeds, and say which of its claims hold.

A row that is finished is never run again; a command that was stopped goes on where it was. Rows that two tables share
are run once.

Examples:
    reluformers table --list
    reluformers table reluformer/t2
    reluformers table reluformer/t2 --setting small --jobs 2 \
        data.train=train.jsonl.gz data.validation=validation.jsonl.gz data.test=test.jsonl.gz
    reluformers table reluformer/t2 --setting small --show --records research/records
    reluformers table relu_vit/f3 --setting small --show --records research/records --plot figure.png
    reluformers table --again research/records/RUN data.train=… data.validation=… data.test=…
    reluformers table --gather runs/tables/records --records research/records
    reluformers table reluformer/t2 --submit slurm_partition=gpu gpus_per_node=1 timeout_min=600
"""

import argparse
import copy
import math
import sys
from pathlib import Path

from reluformers.commands import SECTION_CHANGE, take_changes
from reluformers.evaluation.plotting import check_picture_path
from reluformers.evaluation.results import METRICS
from reluformers.files import check_output_files, write_text
from reluformers.tasks import task_named
from reluformers.training.recipe import override, read_fields
from reluformers_research.evidence import Evidence
from reluformers_research.forest import plot_claims
from reluformers_research.page import replace_claims, replace_tables, tables_in
from reluformers_research.records import RunRecord, gather, load_records
from reluformers_research.report import TableReport
from reluformers_research.row import Job, check_data, check_job
from reluformers_research.runner import run_here, submit
from reluformers_research.tables import Table, list_tables, row_key, run_name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("table", nargs="?", help="SOURCE/TABLE as --list shows it, or a YAML file")
    parser.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="section.key=value",
        help="changes to all recipes, such as where the data lie",
    )
    parser.add_argument("--list", action="store_true", help="show every table or the one named, and end")
    parser.add_argument(
        "--setting",
        default="paper",
        help="paper: data and sizes of the source; small: fit two cores; a table may have others, as --list shows",
    )
    parser.add_argument("--rows", nargs="+", default=["*"], metavar="PATTERN", help="names of rows, such as relu*")
    parser.add_argument("--seeds", nargs="+", default=["1", "2", "3"], metavar="SEED", help="a run for each")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time on this machine")
    parser.add_argument("--minutes", type=float, help="stop after that long; the next call goes on")
    parser.add_argument("--output_dir", type=Path, default=Path("runs/tables"), help="folder of the training runs")
    parser.add_argument("--records", type=Path, help="folder of what is kept; OUTPUT_DIR/records by default")
    parser.add_argument("--show", action="store_true", help="run and submit nothing, show what has run")
    parser.add_argument(
        "--submit", nargs="+", metavar="KEY=VALUE", help="hand the runs to Slurm, with these options of submitit"
    )
    parser.add_argument("--again", type=Path, metavar="RECORD", help="repeat FOLDER/RUN or FILE.json, and compare")
    parser.add_argument(
        "--gather", type=Path, metavar="FOLDER", help="add its records to the Parquet files of --records"
    )
    parser.add_argument("--plot", type=Path, metavar="PICTURE", help="draw the scores too, or with --write all claims")
    parser.add_argument("--write", type=Path, help="Markdown page whose blocks `<!-- table: … -->` are written anew")


def run(options: argparse.Namespace) -> None:
    """Run, then print the table."""
    take_changes(options, "overrides", SECTION_CHANGE, "rows", "seeds", "submit")
    seeds = [_seed(text) for text in options.seeds]
    records = options.records or options.output_dir / "records"
    if options.show and options.records and not options.records.is_dir():
        raise ValueError(f"--records is {options.records}, but there is no such folder")
    if options.minutes is not None and not 0 < options.minutes < math.inf:
        raise ValueError(f"--minutes is {options.minutes}, but must be a number above 0")
    if options.plot:
        check_picture_path(options.plot)
        for other in ("list", "again", "gather", "submit"):
            if getattr(options, other):
                raise ValueError(
                    f"--plot draws a table that is shown or run, or a page, and does not go with --{other}"
                )
    if options.list:
        for name in [options.table] if options.table else list_tables():
            table = Table.load(name)
            print(f"{name}  {table.title}")
            for setting in table.settings:
                print(f"    {setting}: {', '.join(row.name for row in table.rows_of(setting))}")
        return
    if options.submit and (options.minutes is not None or options.jobs != 1):
        raise ValueError(
            "--minutes and --jobs are of runs on this machine, and --submit hands all to Slurm: leave them out"
        )
    if options.again:
        for name, usual in (("setting", "paper"), ("rows", ["*"]), ("seeds", ["1", "2", "3"]), ("jobs", 1)):
            if getattr(options, name) != usual:
                raise ValueError(f"--{name} is of the runs of a table, and --again repeats one run: leave it out")
        # the first change of a recipe stands where a table would
        options.overrides = [*filter(None, [options.table]), *options.overrides]
        repeat(options, records)
        return
    if options.gather:
        if options.table is not None:
            raise ValueError(f"--gather takes the runs of all tables: leave {options.table} out")
        if options.records is None:
            raise ValueError("--gather adds to the Parquet files of a folder: name it with --records")
        print(f"{options.records}: {gather(options.gather, options.records)} runs")
        return
    if options.write:
        if options.table is not None:
            raise ValueError(f"--write writes all tables of a page: leave {options.table} out")
        reports = write_page(options.write, records)
        if options.plot:
            print(f"picture: {plot_claims(reports, options.plot)}")
        return
    if options.table is None:
        raise ValueError("name a table, such as reluformer/t2; --list shows them")
    if options.jobs < 1:
        raise ValueError(f"--jobs is {options.jobs}, but must be 1 or more")
    table = Table.load(options.table)
    jobs = make_jobs(table, seeds, options, records)
    flat = [job for of_row in jobs.values() for job in of_row]
    finished = True
    if not options.show:
        known = {record.name: record for record in load_records(records)}
        for job in flat:
            check_data(job, known[job.name]) if job.name in known else check_job(job)
        if not all(job.name in known for job in flat):
            check_output_files(records / "RUN.json", options.output_dir / "RUN", options.plot)
    if options.submit and not options.show:
        ids = submit(flat, options.output_dir, read_fields(options.submit, "KEY=VALUE"))
        print(f"submitted {len(ids)} runs: {' '.join(ids)}; the same command with --show shows what is finished")
        return
    if not options.show:
        # seed by seed, so that early on every row has one
        ordered = [job for of_seed in zip(*jobs.values(), strict=True) for job in of_seed]
        unique = list({job.name: job for job in ordered}.values())
        finished = run_here(
            unique, options.output_dir, workers=options.jobs, minutes=options.minutes, report=_print_line
        )
    report = TableReport.of_records(
        table, options.setting, Evidence.load(records), rows=options.rows, overrides=options.overrides
    )
    print(report.markdown())
    if options.plot:
        has_runs = any(runs.records for runs in report.runs.values())
        print(f"picture: {report.plot(options.plot)}" if has_runs else "no picture, as no run is finished")
    if not finished:
        sys.exit(1)


def make_jobs(table: Table, seeds: list[int], options: argparse.Namespace, records: Path) -> dict[str, list[Job]]:
    """Row → a job for each seed; every recipe is checked before the first one starts."""
    jobs: dict[str, list[Job]] = {}
    for row in table.rows_of(options.setting, options.rows):
        for seed in seeds:
            recipe = table.recipe(options.setting, row, seed, options.overrides)
            recipe.model_config()
            recipe.training_arguments(options.output_dir)
            name = run_name(recipe)
            folder = str(options.output_dir / name)
            job = Job(name, recipe.to_dict(), table.evaluate_options(options.setting), folder, str(records))
            jobs.setdefault(row.name, []).append(job)
    return jobs


def repeat(options: argparse.Namespace, records: Path) -> None:
    """Run what a record describes once more, and say how far the scores are apart.

    Raises:
        ValueError: the record cannot be read, its recipe is not valid, or the run fails.
    """
    record = RunRecord.load(options.again)
    sections = copy.deepcopy(record.recipe)
    for text in options.overrides:
        override(sections, text)
    recipe = task_named(sections["task"]).recipe_class.from_sections(sections, options.again)
    name = run_name(recipe)
    if (records / name).resolve() == options.again.with_suffix("").resolve():
        raise ValueError(f"{options.again}: a run of its own would be taken for it; give --records another folder")
    job = Job(name, recipe.to_dict(), record.evaluate, str(options.output_dir / name), str(records))
    if not job.is_done:
        check_job(job)
    if not run_here([job], options.output_dir, workers=1, minutes=options.minutes, report=_print_line):
        sys.exit(1)
    metric = METRICS[task_named(sections["task"]).main_metric]
    again = RunRecord.load(records / name)
    for one in (record, again):
        if one.score is None:
            print(f"no scores to compare: {one.name} diverged ({one.diverged})")
            return
    others = Evidence.load(options.again.parent).of_row(row_key(record.to_recipe()))
    scores = [other.score for other in others if other.score is not None]
    print(
        f"{metric.title} {metric.format(again.score)}; the record has {metric.format(record.score)}, its row "
        f"{metric.format(min(scores))} to {metric.format(max(scores))} with {len(scores)} seeds"
    )
    if again.evaluation.data.checksum != record.evaluation.data.checksum:
        raise ValueError("the test sets differ, so the scores are no comparison")


def write_page(page: Path, records: Path) -> list[TableReport]:
    """Write the tables of a page anew, and return them.

    Raises:
        ValueError: the page cannot be read or names a table that is not there, or there are no records.
    """
    try:
        text = page.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{page}: cannot be read ({error.strerror})") from error
    evidence = Evidence.load(records)
    if not evidence:
        raise ValueError(f"{records}: holds no record of a run, and the tables of {page} would be emptied")
    reports = {
        (name, setting): TableReport.of_records(Table.load(name), setting, evidence)
        for name, setting in tables_in(text)
    }
    tables = {key: report.markdown(explain=False) for key, report in reports.items()}
    found = list(reports.values())
    write_text(page, replace_claims(replace_tables(text, tables), found))
    return found


def _seed(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"--seeds: {text!r} is no whole number") from None


def _print_line(line: str) -> None:
    print(line, flush=True)
