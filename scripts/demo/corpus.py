"""English–German lines of the Unicode locale data (CLDR), composed from a seed without any download.

Every name, unit, month, plural and pattern is a translator's entry in CLDR, read through Babel; a line is what both
languages say for the same facts (a date, a sum of money, three countries). The facts themselves are random.
"""

import itertools
import random
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cache
from typing import NamedTuple

from babel import Locale
from babel.core import get_global
from babel.dates import format_date, format_interval, format_time, format_timedelta
from babel.lists import format_list
from babel.numbers import format_compact_decimal, format_currency, format_percent
from babel.units import format_compound_unit, format_unit

Render = Callable[[Locale], str]

SOURCE = Locale("en")
TARGET = Locale("de")
# codes of CLDR that name no country
PSEUDO_TERRITORIES = {"EU", "EZ", "QO", "UN", "XA", "XB", "ZZ"}
UNITS = {
    "length": ("kilometer", "meter", "centimeter", "mile", "foot", "inch", "light-year", "nautical-mile"),
    "area": ("square-kilometer", "square-meter", "hectare", "acre"),
    "volume": ("liter", "cubic-meter", "cup", "gallon", "teaspoon", "barrel"),
    "mass": ("gram", "kilogram", "ton", "ounce", "pound"),
    "energy": ("joule", "calorie", "kilowatt-hour"),
    "power": ("watt", "kilowatt", "horsepower"),
    "digital": ("byte", "megabyte", "gigabyte"),
    "temperature": ("celsius", "fahrenheit"),
    "angle": ("degree", "arc-minute"),
}
DURATIONS = ("year", "month", "week", "day", "hour", "minute", "second")
# seconds of each unit and the most of it that is still said in that unit
RELATIVE = {
    "year": (31_536_000, 99),
    "month": (2_592_000, 11),
    "week": (604_800, 51),
    "day": (86_400, 364),
    "hour": (3_600, 99),
    "minute": (60, 99),
    "second": (1, 99),
}
RATES = (("kilometer", "hour"), ("mile", "hour"), ("meter", "second"), ("liter", "minute"), ("gram", "liter"))


class Row(NamedTuple):
    """One line in both languages and the kind of line it is, a key of `KINDS`."""

    kind: str
    source: str
    target: str


@dataclass(frozen=True)
class DemoCorpus:
    """Training rows and held-out rows; no held-out source or target occurs in training."""

    train: list[Row]
    held_out: list[Row]


@cache
def territories() -> list[str]:
    """Codes of the countries that both languages name."""
    codes = SOURCE.territories.keys() & TARGET.territories.keys() - PSEUDO_TERRITORIES
    return sorted(code for code in codes if re.fullmatch("[A-Z]{2}", code))


@cache
def languages() -> list[str]:
    """Two-letter codes of the languages that both languages name; none that English calls like a country."""
    codes = SOURCE.languages.keys() & TARGET.languages.keys()
    countries = {SOURCE.territories[code] for code in territories()}
    return sorted(code for code in codes if re.fullmatch("[a-z]{2}", code) and SOURCE.languages[code] not in countries)


@cache
def currencies() -> list[str]:
    """Codes of the money that some country pays with today, and that both languages name."""
    current = {
        code
        for entries in get_global("territory_currencies").values()
        for code, _, end, tender in entries
        if tender and end is None
    }
    return sorted(current & SOURCE.currencies.keys() & TARGET.currencies.keys())


@cache
def cities() -> list[str]:
    """Time zones named after a city, where the two languages spell it differently; none that is a country's name."""
    zones = [zone for zone in TARGET.time_zones if "/" in zone and not zone.startswith("Etc/")]
    countries = {plain(SOURCE.territories[code]) for code in territories()}
    different = [zone for zone in zones if city(zone)(SOURCE) != city(zone)(TARGET)]
    return sorted(zone for zone in different if plain(city(zone)(SOURCE)) not in countries)


@cache
def time_zones() -> list[tuple[str, str]]:
    """Time zones and their variants ("standard", "daylight", "generic") that both languages name in full."""
    named = [
        {(zone, variant) for zone, names in locale.meta_zones.items() for variant in names.get("long", {})}
        for locale in (SOURCE, TARGET)
    ]
    return sorted(set.intersection(*named))


def city(zone: str) -> Render:
    """The city that a time zone is named after; CLDR leaves it out where it is the last part of the code."""
    spelled = zone.rsplit("/")[-1].replace("_", " ")
    return lambda locale: locale.time_zones.get(zone, {}).get("city", spelled)


def territory(rng: random.Random) -> Render:
    """A country."""
    return named("territories", rng.choice(territories()))


def listed(parts: list[Render], style: str) -> Render:
    """The parts as a list in words, with "and" (style "standard") or "or"."""
    return lambda locale: format_list([part(locale) for part in parts], style, locale)


def named(table: str, code: str) -> Render:
    """The name of a code in a table of CLDR."""
    return lambda locale: getattr(locale, table)[code]


def joined(pattern: str, *parts: Render) -> Render:
    """The parts in a pattern that both languages write alike."""
    return lambda locale: pattern.format(*(part(locale) for part in parts))


def some_of(rng: random.Random, names: list[Render]) -> Render:
    """One to three of the names as a list, with "and" or "or"."""
    # The demo's small model learns longer lists too late: it leaves out or repeats a member.
    chosen = rng.sample(names, rng.randint(1, 3))
    return listed(chosen, rng.choice(("standard", "or")))


def at_place(rng: random.Random, part: Render) -> Render:
    """The part, half the time after a country and a colon."""
    if rng.random() < 0.5:
        return joined("{}: {}", territory(rng), part)
    return part


def random_number(rng: random.Random) -> Decimal:
    """A number of up to six digits, one in three with one or two decimals."""
    decimals = rng.choice((0, 0, 0, 0, 1, 2))
    return Decimal(rng.randrange(2, 10 ** rng.randint(1, 6))).scaleb(-decimals)


def random_date(rng: random.Random) -> date:
    """A day from 1950 to 2049."""
    return date(1950, 1, 1) + timedelta(days=rng.randrange(36_525))


def random_time(rng: random.Random) -> time:
    """A minute of the day."""
    return time(rng.randrange(24), rng.randrange(60))


def date_line(rng: random.Random) -> Render:
    """A day, such as "Wednesday, January 3, 2024"."""
    day = random_date(rng)
    style = rng.choice(("full", "long", "medium"))
    if day.month == 5 and style == "medium":
        style = "long"  # "May 3, 2024" is both in English, but not in German
    return lambda locale: format_date(day, style, locale)


def moment_line(rng: random.Random) -> Render:
    """A day and a time, such as "January 3, 2024, 3:04 PM": twelve hours become twenty-four."""
    moment = datetime.combine(random_date(rng), random_time(rng))
    style = rng.choice(("full", "long"))
    return lambda locale: (
        locale.datetime_formats[style]
        .replace("'", "")
        .format(format_time(moment.time(), "short", locale=locale), format_date(moment, style, locale))
    )


def interval_line(rng: random.Random) -> Render:
    """Two days, such as "Jan 3 – 7, 2024": what they share is said once."""
    start = random_date(rng)
    end = start + timedelta(days=rng.choice((rng.randint(1, 20), rng.randint(30, 1000))))
    skeleton = rng.choice(("yMMMd", "yMMMEd", "yMMMM"))
    return lambda locale: format_interval(start, end, skeleton, locale=locale)


def relative_line(rng: random.Random) -> Render:
    """A time from now, such as "in 5 days" and "2 weeks ago": in German the noun takes the dative."""
    unit = rng.choice(list(RELATIVE))
    seconds, most = RELATIVE[unit]
    delta = timedelta(seconds=rng.choice((-1, 1)) * rng.randint(1, most) * seconds)
    return at_place(
        rng, lambda locale: format_timedelta(delta, unit, threshold=1e9, add_direction=True, locale=locale)
    )


def quantity(value: int | Decimal, unit: str) -> Render:
    """A number and its unit in full."""
    return lambda locale: format_unit(value, unit, locale=locale)


def duration_line(rng: random.Random) -> Render:
    """Two or three amounts of time, such as "3 hours and 20 minutes"."""
    first = rng.randrange(len(DURATIONS) - 1)
    chosen = DURATIONS[first : first + rng.randint(2, 3)]
    return listed([quantity(rng.randint(1, 59), f"duration-{unit}") for unit in chosen], "standard")


def measure(rng: random.Random) -> Render:
    """A measured quantity, or a rate."""
    value = random_number(rng)
    if rng.random() < 0.25:
        unit, per = rng.choice(RATES)
        return lambda locale: format_compound_unit(value, unit, denominator_unit=per, locale=locale)
    kind = rng.choice(list(UNITS))
    return quantity(value, f"{kind}-{rng.choice(UNITS[kind])}")


def measure_line(rng: random.Random) -> Render:
    """A measured quantity, such as "Iceland: 12.5 square kilometers"."""
    return at_place(rng, measure(rng))


def money_line(rng: random.Random) -> Render:
    """A sum of money, such as "1,234.50 Swiss francs"."""
    amount = random_number(rng)
    code = rng.choice(currencies())
    return lambda locale: format_currency(amount, code, locale=locale, format_type="name")


def share_line(rng: random.Random) -> Render:
    """A big number in words or a share, such as "Brazil: 3.4 million" and "12.5%"."""
    tenths = rng.randint(10, 9_999)
    if rng.random() < 0.5:
        number = tenths * 10 ** rng.choice((5, 8))
        return at_place(
            rng, lambda locale: format_compact_decimal(number, format_type="long", locale=locale, fraction_digits=1)
        )
    share = Decimal(tenths) / 10_000
    return at_place(rng, lambda locale: format_percent(share, locale=locale, decimal_quantization=False))


def places_line(rng: random.Random) -> Render:
    """One to three countries, such as "Germany, France, and Italy"."""
    return some_of(rng, [named("territories", code) for code in territories()])


def cities_line(rng: random.Random) -> Render:
    """One to three cities, such as "Vienna, Rome, or Tokyo"."""
    return some_of(rng, [city(zone) for zone in cities()])


def languages_line(rng: random.Random) -> Render:
    """One to three languages, such as "Danish, Greek, and Welsh"."""
    return some_of(rng, [named("languages", code) for code in languages()])


def locale_line(rng: random.Random) -> Render:
    """A language as spoken somewhere, such as "Danish (Greenland)"."""
    return joined("{} ({})", named("languages", rng.choice(languages())), territory(rng))


def zone_line(rng: random.Random) -> Render:
    """A time in a time zone, such as "3:04 PM Japan Standard Time"."""
    clock = random_time(rng)
    zone, variant = rng.choice(time_zones())
    return joined(
        "{} {}",
        lambda locale: format_time(clock, "short", locale=locale),
        lambda locale: locale.meta_zones[zone]["long"][variant],
    )


def entry_line(rng: random.Random) -> Render:
    """Three lines in one, such as "Vienna or Rome: January 3, 2024, 3:04 PM; 3 hours and 20 minutes"."""
    where = rng.choice((cities_line, places_line, locale_line))
    when = rng.choice((date_line, moment_line, interval_line))
    what = rng.choice((duration_line, money_line, measure))
    return joined("{}: {}; {}", where(rng), when(rng), what(rng))


def series_line(rng: random.Random) -> Render:
    """Two short lines of any kind, such as "in 5 days; Brazil: 3.4 million"."""
    lines = [SHORT_KINDS[kind](rng) for kind in rng.choices(list(SHORT_KINDS), k=2)]
    return joined("{}; {}", *lines)


# in the order in which the demo shows them
SHORT_KINDS: dict[str, Callable[[random.Random], Render]] = {
    "moment": moment_line,
    "interval": interval_line,
    "relative time": relative_line,
    "duration": duration_line,
    "money": money_line,
    "countries": places_line,
    "cities": cities_line,
    "locale": locale_line,
    "time zone": zone_line,
    "date": date_line,
    "measure": measure_line,
    "share": share_line,
    "languages": languages_line,
}
# a line of several parts has several chances to be wrong, so the corpus has many of them
LONG_KINDS = {"entry": entry_line, "series": series_line}
LONG_ROWS = 5
KINDS = {**LONG_KINDS, **SHORT_KINDS}


def words(text: str) -> set[str]:
    """The words of a text without digits and punctuation."""
    return set(re.findall(r"[^\W\d_]+", text))


def plain(text: str) -> str:
    """The text with plain spaces for CLDR's special ones and without soft hyphens."""
    return unicodedata.normalize("NFKC", text).replace("\u00ad", "")


def draw_rows(rng: random.Random, count: int) -> list[Row]:
    """`count` distinct rows, all kinds in turn; no source and no target occurs twice."""
    rows = []
    sources = set()
    targets = set()
    for kind in itertools.cycle([*KINDS, *list(LONG_KINDS) * (LONG_ROWS - 1)]):
        if len(rows) == count:
            return rows
        render = KINDS[kind](rng)
        row = Row(kind, plain(render(SOURCE)), plain(render(TARGET)))
        if row.source not in sources and row.target not in targets:
            rows.append(row)
            sources.add(row.source)
            targets.add(row.target)


def build_corpus(train_rows: int = 30_000, held_out_rows: int = 600, seed: int = 0) -> DemoCorpus:
    """Compose the corpus: the same rows for the same seed and release of Babel.

    A held-out row is a new combination of known words: no sentence of it occurs in training, every word does.
    """
    rows = draw_rows(random.Random(seed), train_rows + 2 * held_out_rows)
    train = rows[:train_rows]
    rest = rows[train_rows:]
    known = [set().union(*(words(row[side]) for row in train)) for side in (1, 2)]
    held_out = [row for row in rest if words(row.source) <= known[0] and words(row.target) <= known[1]]
    return DemoCorpus(train, held_out[:held_out_rows])
