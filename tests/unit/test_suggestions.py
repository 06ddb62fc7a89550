"""Answers to flags as users of other trainers know them: the right one, or nothing.

Mutations that turn this red: lower LIKE_A_FLAG to difflib's 0.6; take a name out of
common/options/other_names.py; drop `_elsewhere`; leave a setting's choices out of add_row; let
SentenceParser.error be argparse's.
"""

import re
import subprocess
import sys
from collections import Counter

import pytest

from common.core.failures import UsageError
from common.options import other_names
from common.options.command_line import PARTS, _parser, parse_command_line
from tests.ranks import ROOT
from tests.unit.test_interpreter import PROGRAMS

CALLED = "in this program it is called "
SLIPS = [  # the command line of Part Two, and what must be answered; "" where nothing fits
    ("--lr 0.1", CALLED + "--learning-rate"),
    ("-N four", ""),
    ("--world-size 4", CALLED + "--num-nodes"),
    ("--gpus 4", "each rank takes one GPU"),
    ("--amp", CALLED + "--precision bf16"),
    # Flags of PyTorch's own examples, Lightning, Hugging Face, timm, fairseq and accelerate.
    ("-lr 0.1", CALLED + "--learning-rate"),
    ("--learning_rate 0.1", "did you mean --learning-rate?"),
    ("--LR=0.1", CALLED + "--learning-rate"),
    ("--nnodes 2", CALLED + "--num-nodes"),
    ("--nproc-per-node 4", "it belongs to the launcher"),
    ("--nproc_per_node=4", "it belongs to the launcher"),
    ("--num_gpus 2", "each rank takes one GPU"),
    ("--fp16", CALLED + "--precision fp16"),
    ("--bf16", CALLED + "--precision bf16"),
    ("--dtype bfloat16", CALLED + "--precision"),
    ("--mixed_precision fp16", CALLED + "--precision"),
    ("--workers 4", CALLED + "--loader workers:N"),
    ("-j 4", CALLED + "--loader workers:N"),
    ("--num_workers 4", CALLED + "--loader workers:N"),
    ("-b 64", CALLED + "--batch-size"),
    ("--batch 64", CALLED + "--batch-size"),
    ("--bs 64", CALLED + "--batch-size"),
    ("--per_device_train_batch_size 8", "--batch-size is the global batch"),
    ("--wd 5e-4", CALLED + "--weight-decay"),
    ("--optim sgd", CALLED + "--optimizer"),
    ("--opt sgd", CALLED + "--optimizer"),
    ("--optimiser sgd", CALLED + "--optimizer"),
    ("--ckpt a.pt", CALLED + "--resume"),
    ("--resume-from a.pt", CALLED + "--resume"),
    ("--resume_from_checkpoint a.pt", CALLED + "--resume"),
    ("--checkpoint a.pt", CALLED + "--resume"),
    ("--output out", CALLED + "--output-dir"),
    ("--out out", CALLED + "--output-dir"),
    ("--logdir out", CALLED + "--output-dir"),
    ("--data data", CALLED + "--data-dir"),
    ("--dataset cifar10", CALLED + "--workload"),
    ("--arch vgg11", CALLED + "--model"),
    ("-a vgg11", CALLED + "--model"),
    ("--img-size 224", CALLED + "--image-size"),
    ("--port 29501", CALLED + "--master-port"),
    ("--master-addr 10.0.0.1", CALLED + "--master-ip"),
    ("--master_addr 10.0.0.1", CALLED + "--master-ip"),
    ("--dist-url tcp://10.0.0.1:29500", CALLED + "--master-ip and --master-port"),
    ("--local-rank 0", "divide its GPUs among them"),
    ("--local_rank=0", "divide its GPUs among them"),
    ("--node-rank 0", CALLED + "--rank"),
    ("--dist-backend nccl", CALLED + "--backend"),
    ("--grad-accum 4", CALLED + "--accumulate"),
    ("--gradient-accumulation-steps 4", CALLED + "--accumulate"),
    ("--max-steps 40", CALLED + "--max-iterations"),
    ("--max_iters 40", CALLED + "--max-iterations"),
    ("--num_train_epochs 3", CALLED + "--epochs"),
    ("--val-split 0.1", CALLED + "--validation"),
    ("--scheduler cosine", CALLED + "--schedule"),
    ("--warmup_steps 500", "--schedule cosine:2"),
    ("--sync-bn", CALLED + "--batch-norm synchronised"),
    ("--log-interval 10", CALLED + "--log-every"),
    ("--print-freq 10", CALLED + "--log-every"),
    ("--save-every 10", CALLED + "--checkpoint-every"),
    ("--no-cuda", CALLED + "--device cpu"),
    ("--use-cuda", CALLED + "--device cuda"),
    ("--clip-grad-norm 1", "gradients are not clipped"),
    ("--wandb", CALLED + "--tracker wandb"),
    ("--wandb_project resnets", "WANDB_PROJECT"),
    ("--comet_project resnets", "--tracker FILE.py:NAME"),
    ("--neptune", "TensorBoard"),
    ("--strategy ddp", "DistributedDataParallel is Part Three"),
    ("--strategy=ddp_find_unused_parameters_false", "DistributedDataParallel is Part Three"),
    ("--bucket_cap_mb 25", CALLED + "--bucket-mb"),
    ("--comm-hook fp16", CALLED + "--wire"),
    ("--data-parallel", CALLED + "--parallel data-parallel, which only Part Three has"),
    ("--epoch 3", "did you mean --epochs?"),
    ("--ephocs 3", "did you mean --epochs?"),
    ("--compile", ""),
    ("--dropout 0.5", ""),
    ("--zero 3", ""),
    ("--evaluate", ""),
    ("--verbose", ""),
    ("--hidden-size 64", ""),
    ("--pretrained", ""),
    ("--image-size large", ""),
    ("-x", ""),
    ("--num-nodes two", ""),
    ("--epochs three", ""),
    ("--resume", ""),
    ("cifar10", ""),
]
A_SUGGESTION = re.compile(r"did you mean|in this program|only Part")


def complaint(part: str, words: str) -> str:
    with pytest.raises(UsageError) as raised:
        parse_command_line(part, words.split())
    return str(raised.value)


@pytest.mark.parametrize("words, answer", SLIPS, ids=[words for words, _ in SLIPS])
def test_other_trainers_names_are_answered_rightly_or_not_at_all(words, answer):
    said = complaint("PartTwo", words)
    assert answer in said and "\n" not in said
    if answer.startswith((CALLED, "did you mean")):  # this, and no more
        assert said.removesuffix(" (see --help)").endswith(answer)
    assert bool(A_SUGGESTION.search(said)) == bool(A_SUGGESTION.search(answer))


def test_what_only_other_parts_have_is_told():
    assert complaint("PartOne", "--num-nodes 4").endswith("only Part Two and Part Three have it")
    assert complaint("PartOne", "--world-size 4").endswith(
        CALLED + "--num-nodes, which only Part Two and Part Three have")
    assert complaint("PartThree", "--sync all-reduce").endswith("only Part Two has it")
    assert complaint("Preflight", "--parallel ddp").endswith("only Part Three has it")


@pytest.mark.parametrize("words, choices", [
    ("--precision bfloat16", ("bf16", "fp16")), ("--wire int2", ("bf16", "int4")),
    ("--device gpu", ("cpu", "cuda")), ("--schedule CosineAnnealingLR", ("cosine", "step")),
    ("--sync ddp", ("all-reduce", "diloco")),
    ("--tracker wandbs", ("tensorboard", "wandb", "FILE.py:NAME")),
    ("--workload cifar10", ("cifar10-vgg11", "FILE.py:NAME")), ("--recipe fast", ("record",))])
def test_a_wrong_value_is_answered_by_those_that_there_are(words, choices):
    said = complaint("PartTwo", words)
    assert all(choice in said for choice in (words.split()[1], *choices)) and "\n" not in said


def test_the_clusters_flags_get_one_sentence_in_part_one():
    assert complaint("PartOne", "-N 4") == (
        "there is no flag -N here: only Part Two and Part Three have it")
    assert complaint("PartOne", "-M 10.0.0.1 -N 4 -R 0") == (
        "there are no flags -M, -N and -R here: only Part Two and Part Three have them")


SCRIPTS = [path for path in PROGRAMS if path.startswith("scripts/")]


@pytest.mark.parametrize("program", SCRIPTS)
def test_every_program_says_a_mistake_in_one_sentence(program):
    done = subprocess.run([sys.executable, program, "--no-such-flag"], cwd=ROOT, timeout=100,
                          capture_output=True, text=True)
    assert done.returncode == 2 and not done.stdout
    assert re.fullmatch(r"error: .+ \(see --help\)\n", done.stderr), done.stderr
    assert not done.stderr.startswith("error: argument ")


def test_no_program_has_a_parser_that_prints_its_usage():
    assert not [program for program in PROGRAMS if not program.endswith("worker.py")  # of ours
                and "argparse.ArgumentParser(" in (ROOT / program).read_text()]


@pytest.mark.parametrize("part", PARTS)
def test_every_part_answers_and_all_wrong_flags_are_named(part):
    said = complaint(part, "--lr 0.1 --amp --no-such-flag")
    for answer in (CALLED + "--learning-rate;", CALLED + "--precision bf16;",
                   "there is no flag --no-such-flag"):
        assert answer in said


def test_the_tables_name_flags_that_exist_and_each_other_name_once():
    flags = {flag for part in PARTS for flag in _parser(part).flags}
    assert {ours.split()[0] for ours in other_names.NAMES} <= flags
    others = Counter(name for names in (*other_names.NAMES.values(), *other_names.SENTENCES)
                     for name in names.split())
    assert set(others.values()) == {1} and not set(others) & flags
