r"""Run the rows of a paper's table with several seeds, and say which of its claims hold.

`table` never runs a finished row again: if it was stopped, give the same command again. It runs a row that two tables
share once.

Examples:
    reluformers table --list
    reluformers table reluformer/t2
    reluformers table reluformer/t2 --setting small --jobs 2 \
        data.train=train.jsonl.gz data.validation=validation.jsonl.gz data.test=test.jsonl.gz
    reluformers table reluformer/t2 --setting small --show --records research/records
    reluformers table --gather runs/tables/records --records research/records
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from reluformers.evaluation.plotting import check_picture_path
from reluformers.files import write_text
from reluformers_research.evidence import Evidence
from reluformers_research.leads import Lead, find_leads, leads_table, plot_leads
from reluformers_research.page import counts, replace_blocks, tables_in
from reluformers_research.records import gather, load_records
from reluformers_research.report import TableReport
from reluformers_research.row import Job, check_data, check_job
from reluformers_research.runner import run_here
from reluformers_research.tables import Table, list_tables, run_name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("table", nargs="?", help="SOURCE/TABLE as --list shows it, or a YAML file")
    parser.add_argument(
        "changes",
        nargs="*",
        default=[],
        metavar="section.key=value",
        help="change of one key in all recipes, such as a path of data",
    )
    parser.add_argument("--list", action="store_true", help="print every table or the named table, and end")
    parser.add_argument(
        "--setting",
        default="paper",
        help="paper: data and sizes of the paper; small: sizes for two cores; --list shows others",
    )
    parser.add_argument("--rows", nargs="+", default=["*"], metavar="PATTERN", help="rows to run, such as relu*")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], metavar="SEED", help="seeds of each row")
    parser.add_argument("--jobs", type=int, default=1, help="number of runs at the same time")
    parser.add_argument("--output_dir", type=Path, default=Path("runs/tables"), help="folder of the training runs")
    parser.add_argument("--records", type=Path, help="folder of the records; without it, OUTPUT_DIR/records")
    parser.add_argument("--show", action="store_true", help="run nothing; print the finished rows")
    parser.add_argument(
        "--gather", type=Path, metavar="FOLDER", help="add the records of FOLDER to the Parquet files of --records"
    )
    parser.add_argument(
        "--write", type=Path, nargs="+", metavar="PAGE", help="Markdown pages; write their generated blocks again"
    )
    parser.add_argument("--plot", type=Path, metavar="PICTURE", help="with --write: draw the leads over softmax")


def run(options: argparse.Namespace) -> None:
    """Do what the options ask for, else run the rows and print the table."""
    records = options.records or options.output_dir / "records"
    if options.plot:
        check_picture_path(options.plot)
    if options.list:
        list_rows([options.table] if options.table else list_tables())
    elif options.gather:
        print(f"{records}: {gather(options.gather, records)} runs")
    elif options.write:
        leads = write_pages(options.write, records)
        if options.plot:
            print(f"picture: {plot_leads(leads, options.plot)}")
    elif options.table is None:
        raise ValueError("name a table, such as reluformer/t2; --list shows them")
    else:
        show_table(options, records)


def list_rows(names: list[str]) -> None:
    """Print tables with their settings and rows."""
    for name in names:
        table = Table.load(name)
        print(f"{name}  {table.title}")
        for setting in table.settings:
            print(f"    {setting}: {', '.join(row.name for row in table.rows_of(setting))}")


def show_table(options: argparse.Namespace, records: Path) -> None:
    """Run what is missing of a table, unless it is only shown, and print it."""
    table = Table.load(options.table)
    jobs = make_jobs(table, options, records)
    finished = options.show or run_jobs(jobs, options, records)
    report = TableReport(table, options.setting, Evidence.load(records), rows=options.rows, overrides=options.changes)
    print(report.markdown())
    if not finished:
        sys.exit(1)


def run_jobs(jobs: dict[str, Job], options: argparse.Namespace, records: Path) -> bool:
    """Run the jobs of rows that are not done; returns whether all are."""
    known = {record.name: record for record in load_records(records)}
    for name, job in jobs.items():
        check_data(job, known[name]) if name in known else check_job(job)
    return run_here(list(jobs.values()), options.output_dir, options.jobs)


def make_jobs(table: Table, options: argparse.Namespace, records: Path) -> dict[str, Job]:
    """Name → job, seed by seed, so that early on every row has a run; every recipe is checked before one starts."""
    jobs = {}
    for seed in options.seeds:
        for row in table.rows_of(options.setting, options.rows):
            recipe = table.recipe(options.setting, row, seed, options.changes)
            recipe.model_config()
            recipe.training_arguments(options.output_dir)
            name = run_name(recipe)
            folder = str(options.output_dir / name)
            jobs[name] = Job(name, recipe.to_dict(), table.evaluate_options(options.setting), folder, str(records))
    return jobs


def write_pages(pages: Sequence[Path], records: Path) -> dict[str, dict[str, Lead]]:
    """Write tables, leads and counts of pages anew, each of the tables of all; returns the leads on softmax."""
    texts = {page: page.read_text(encoding="utf-8") for page in pages}
    evidence = Evidence.load(records)
    if not evidence:
        raise ValueError(f"{records}: holds no record of a run, and the pages would be emptied")
    names = dict.fromkeys(name for text in texts.values() for name in tables_in(text))
    reports = [TableReport(Table.load(name), setting, evidence) for name, setting in names]
    leads = find_leads(evidence)
    blocks = {"leads": leads_table(leads), "counts": counts(reports)}
    for (name, setting), report in zip(names, reports, strict=True):
        blocks[f"table: {name} {setting}"] = report.markdown()
    for page, text in texts.items():
        write_text(page, replace_blocks(text, blocks))
    return leads
