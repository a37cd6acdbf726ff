"""Batches within a budget of tokens: the promises of the sampler, over random lengths and numbers of processes."""

from collections import Counter
from itertools import chain

import accelerate
import numpy as np
import pytest
import torch
from datasets import Dataset

from reluformers.data.batching import PerProcessDataLoader, SeededBatchSampler, TokenBudgetBatchSampler


def random_lengths(seed, rows=700):
    random = np.random.default_rng(seed)
    source = np.clip(random.gamma(3, 6, rows), 1, 90).astype(int)
    target = np.clip(source * random.normal(1, 0.25, rows), 1, 90).astype(int)
    return source, target


def samplers(lengths, max_tokens, world_size=1, **options):
    return [
        TokenBudgetBatchSampler(*lengths, max_tokens, rank=rank, world_size=world_size, **options)
        for rank in range(world_size)
    ]


def epoch_of(sampler, epoch):
    sampler.set_epoch(epoch)
    return list(sampler)


@pytest.mark.parametrize(("max_tokens", "world_size"), [(90, 1), (333, 2), (4096, 3), (333, 4)])
@pytest.mark.parametrize("options", [{}, {"shuffle": False}], ids=str)
def test_promises(max_tokens, world_size, options):
    seed, lengths = max_tokens, random_lengths(max_tokens)
    group = samplers(lengths, max_tokens, world_size, seed=seed, **options)
    compositions = []
    for epoch in (0, 1, 7):
        dealt = [epoch_of(sampler, epoch) for sampler in group]
        assert {len(batches) for batches in dealt} == {len(group[0])}
        batches = list(chain.from_iterable(dealt))
        assert sorted(chain.from_iterable(batches)) == list(range(len(lengths[0])))
        for batch in batches:
            assert len(batch) * max(side[batch].max() for side in lengths) <= max_tokens
        compositions.append(
            Counter(tuple(sorted(zip(*(side[batch] for side in lengths), strict=True))) for batch in batches)
        )
    assert compositions[0] == compositions[1] == compositions[2]


def test_order_depends_on_seed_and_epoch_alone():
    lengths = random_lengths(0)
    first, again, other = (TokenBudgetBatchSampler(*lengths, 500, seed=seed) for seed in (3, 3, 4))
    assert epoch_of(first, 2) == epoch_of(again, 2)
    torch.manual_seed(1)
    np.random.seed(1)
    assert list(first) == list(first) == list(again)
    assert epoch_of(first, 2) != epoch_of(first, 3)
    assert epoch_of(first, 2) != epoch_of(other, 2)


def test_rows_of_equal_lengths_change_batches():
    sampler = TokenBudgetBatchSampler([4] * 100, [4] * 100, 40)
    grouping = [{frozenset(batch) for batch in epoch_of(sampler, epoch)} for epoch in (0, 1)]
    assert grouping[0] != grouping[1]


@pytest.mark.parametrize(
    ("source", "target", "world_size", "said"),
    [([3, 4, 5], [3, 12, 5], 1, "12 tokens"), ([9] * 3, [9] * 3, 2, "3 batches")],
)
def test_impossible_batches_are_refused(source, target, world_size, said):
    with pytest.raises(ValueError, match=said):
        TokenBudgetBatchSampler(source, target, 10, world_size=world_size)


def loader_of(**options):
    dataset = Dataset.from_dict({"row": list(range(60))})
    sampler = TokenBudgetBatchSampler(*random_lengths(5, 60), 200, seed=1)
    return PerProcessDataLoader(
        dataset, batch_sampler=sampler, collate_fn=lambda rows: [row["row"] for row in rows], **options
    )


@pytest.mark.parametrize("workers", [0, 1])
def test_loader_yields_the_batches_of_its_epoch_and_accelerate_leaves_it_alone(workers):
    loader = loader_of(num_workers=workers)
    assert accelerate.Accelerator(cpu=True).prepare(loader) is loader
    assert len(loader) == len(loader.batch_sampler)
    for epoch in (0, 1, 0):
        loader.set_epoch(epoch)
        assert list(loader) == list(loader.batch_sampler)
    loader.set_epoch(1)
    later = list(loader)
    loader.set_epoch(0)
    assert later != list(loader)


@pytest.mark.parametrize(("rows", "batch_size", "world_size"), [(20, 4, 1), (23, 4, 2), (29, 3, 4), (3, 8, 2)])
def test_every_row_is_drawn_once_by_one_process(rows, batch_size, world_size):
    samplers = [
        SeededBatchSampler(rows, batch_size, seed=5, rank=rank, world_size=world_size) for rank in range(world_size)
    ]
    orders = []
    for epoch in (0, 1, 0):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        batches = [list(sampler) for sampler in samplers]
        assert {len(part) for part in batches} == {len(samplers[0])}
        for together in zip(*batches, strict=True):
            sizes = [len(draw.rows) for draw in together]
            assert min(sizes) > 0
            assert max(sizes) - min(sizes) <= 1
            assert max(sizes) <= batch_size
        drawn = [row for part in batches for draw in part for row in draw.rows]
        assert sorted(drawn) == list(range(rows))
        seeds = [draw.seed for part in batches for draw in part]
        assert len(set(seeds)) == len(seeds)
        orders.append((drawn, seeds))
    assert orders[0] == orders[2]
    assert orders[0][0] != orders[1][0]
    assert not set(orders[0][1]) & set(orders[1][1])


def test_what_is_left_of_the_rows_can_be_dropped():
    assert [len(draw.rows) for draw in SeededBatchSampler(11, 4)] == [4, 4, 3]
    assert [len(draw.rows) for draw in SeededBatchSampler(11, 4, drop_last=True)] == [4, 4]
    # one row is left for two processes
    assert [len(draw.rows) for draw in SeededBatchSampler(9, 2, world_size=2)] == [2, 2]
    with pytest.raises(ValueError, match="3 rows"):
        SeededBatchSampler(3, 4, drop_last=True)


def test_processes_draw_what_one_would_draw_in_larger_batches():
    alone = [draw.rows for draw in SeededBatchSampler(24, 6)]
    parts = [[draw.rows for draw in SeededBatchSampler(24, 3, rank=rank, world_size=2)] for rank in range(2)]
    assert [sorted(one + other) for one, other in zip(*parts, strict=True)] == [sorted(rows) for rows in alone]
