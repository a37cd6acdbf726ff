"""Few rows of a large product of cases: every pair of values of two factors occurs in one of them."""

import random
from itertools import combinations, product
from typing import Any


def covering(**factors: list | tuple) -> list[dict[str, Any]]:
    """Cases with one value of each factor, the same in every process."""
    rng = random.Random(0)
    names = list(factors)
    rng_order = {name: rng.sample(range(len(values)), len(values)) for name, values in factors.items()}
    pairs = [
        ((one, first), (other, second))
        for one, other in combinations(names, 2)
        for first, second in product(rng_order[one], rng_order[other])
    ]
    missing = dict.fromkeys(pairs)

    def pair(*places: tuple[str, int]) -> tuple:
        return tuple(sorted(places, key=lambda place: names.index(place[0])))

    cases = []
    while missing:
        case = dict(next(iter(missing)))
        for name in rng.sample(names, len(names)):
            if name not in case:
                new = {
                    number: sum(pair((name, number), place) in missing for place in case.items())
                    for number in rng.sample(range(len(factors[name])), len(factors[name]))
                }
                case[name] = max(new, key=new.get)
        for place in combinations(case.items(), 2):
            missing.pop(pair(*place), None)
        cases.append({name: factors[name][case[name]] for name in names})
    return cases
