"""Answers to flags as users of other trainers know them: the right one, or nothing.

Mutations that turn this red: lower LIKE_A_FLAG to difflib's 0.6; take a name out of
common/options/other_names.py; drop `_elsewhere`; leave a setting's choices out of add_row; let
SentenceParser.error be argparse's, or say argparse's words; drop a colon of getopts.
"""

import re
import subprocess
import sys
from collections import Counter

import pytest

from common.core.failures import UsageError
from common.options import other_names
from common.options.command_line import PARTS, _parser, parse_command_line
from common.options.flag_parser import HELP, SentenceParser
from common.options.other_names import CALLED, MEANT
from tests.facts import says
from tests.ranks import ROOT
from tests.unit.test_interpreter import PROGRAMS

SLIPS = [  # the command line of Part Two, and what must be answered; "" where nothing fits
    ("--lr 0.1", f"{CALLED} --learning-rate"),
    ("-N four", ""),
    ("--world-size 4", f"{CALLED} --num-nodes"),
    ("--gpus 4", "torchrun --nproc-per-node N"),
    ("--amp", f"{CALLED} --precision bf16"),
    # Flags of PyTorch's own examples, Lightning, Hugging Face, timm, fairseq and accelerate.
    ("-lr 0.1", f"{CALLED} --learning-rate"),
    ("--learning_rate 0.1", f"{MEANT} --learning-rate?"),
    ("--LR=0.1", f"{CALLED} --learning-rate"),
    ("--nnodes 2", f"{CALLED} --num-nodes"),
    ("--nproc-per-node 4", "torchrun --nproc-per-node 4"),
    ("--nproc_per_node=4", "torchrun --nproc-per-node 4"),
    ("--num_gpus 2", "torchrun --nproc-per-node N"),
    ("--fp16", f"{CALLED} --precision fp16"),
    ("--bf16", f"{CALLED} --precision bf16"),
    ("--dtype bfloat16", f"{CALLED} --precision"),
    ("--mixed_precision fp16", f"{CALLED} --precision"),
    ("--workers 4", f"{CALLED} --loader workers:N"),
    ("-j 4", f"{CALLED} --loader workers:N"),
    ("--num_workers 4", f"{CALLED} --loader workers:N"),
    ("-b 64", f"{CALLED} --batch-size"),
    ("--batch 64", f"{CALLED} --batch-size"),
    ("--bs 64", f"{CALLED} --batch-size"),
    ("--per_device_train_batch_size 8", "--batch-size"),
    ("--wd 5e-4", f"{CALLED} --weight-decay"),
    ("--optim sgd", f"{CALLED} --optimizer"),
    ("--opt sgd", f"{CALLED} --optimizer"),
    ("--optimiser sgd", f"{CALLED} --optimizer"),
    ("--ckpt a.pt", f"{CALLED} --resume"),
    ("--resume-from a.pt", f"{CALLED} --resume"),
    ("--resume_from_checkpoint a.pt", f"{CALLED} --resume"),
    ("--checkpoint a.pt", f"{CALLED} --resume"),
    ("--output out", f"{CALLED} --output-dir"),
    ("--out out", f"{CALLED} --output-dir"),
    ("--logdir out", f"{CALLED} --output-dir"),
    ("--data data", f"{CALLED} --data-dir"),
    ("--dataset cifar10", f"{CALLED} --workload"),
    ("--arch vgg11", f"{CALLED} --model"),
    ("-a vgg11", f"{CALLED} --model"),
    ("--img-size 224", f"{CALLED} --image-size"),
    ("--port 29501", f"{CALLED} --master-port"),
    ("--master-addr 10.0.0.1", f"{CALLED} --master-ip"),
    ("--master_addr 10.0.0.1", f"{CALLED} --master-ip"),
    ("--local-rank 0", "GPUs"),
    ("--local_rank=0", "GPUs"),
    ("--node-rank 0", f"{CALLED} --rank"),
    ("--dist-backend nccl", f"{CALLED} --backend"),
    ("--grad-accum 4", f"{CALLED} --accumulate"),
    ("--gradient-accumulation-steps 4", f"{CALLED} --accumulate"),
    ("--max-steps 40", f"{CALLED} --max-iterations"),
    ("--max_iters 40", f"{CALLED} --max-iterations"),
    ("--num_train_epochs 3", f"{CALLED} --epochs"),
    ("--val-split 0.1", f"{CALLED} --validation"),
    ("--scheduler cosine", f"{CALLED} --schedule"),
    ("--warmup_steps 500", "--schedule cosine:2"),
    ("--sync-bn", f"{CALLED} --batch-norm synchronised"),
    ("--log-interval 10", f"{CALLED} --log-every"),
    ("--print-freq 10", f"{CALLED} --log-every"),
    ("--save-every 10", f"{CALLED} --checkpoint-every"),
    ("--no-cuda", f"{CALLED} --device cpu"),
    ("--use-cuda", f"{CALLED} --device cuda"),
    ("--clip-grad-norm 1", "gradients"),
    ("--wandb", f"{CALLED} --tracker wandb"),
    ("--wandb_project resnets", "WANDB_PROJECT"),
    ("--comet_project resnets", "--tracker FILE.py:NAME"),
    ("--neptune", "TensorBoard"),
    ("--strategy ddp", "Part Three"),
    ("--strategy=ddp_find_unused_parameters_false", "Part Three"),
    ("--bucket_cap_mb 25", f"{CALLED} --bucket-mb"),
    ("--comm-hook fp16", f"{CALLED} --wire"),
    ("--epoch 3", f"{MEANT} --epochs?"),
    ("--ephocs 3", f"{MEANT} --epochs?"),
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
A_SUGGESTION = re.compile(f"{MEANT}|{CALLED}")


def complaint(part: str, words: str) -> str:
    with pytest.raises(UsageError) as raised:
        parse_command_line(part, words.split())
    return str(raised.value)


@pytest.mark.parametrize("words, answer", SLIPS, ids=[words for words, _ in SLIPS])
def test_other_trainers_names_are_answered_rightly_or_not_at_all(words, answer):
    said = complaint("PartTwo", words)
    assert answer in said and "\n" not in said
    if answer.startswith((CALLED, MEANT)):  # this, and no more
        assert said.removesuffix(f" {HELP}").endswith(answer)
    assert bool(A_SUGGESTION.search(said)) == bool(A_SUGGESTION.search(answer))
    assert answer or "Part T" not in said


def test_what_only_other_parts_have_is_told():
    for part, words, facts in (
            ("PartOne", "--num-nodes 4", ["--num-nodes", "Part Two", "Part Three"]),
            ("PartOne", "--world-size 4", ["--num-nodes", "Part Two", "Part Three"]),
            ("PartTwo", "--data-parallel", ["--parallel data-parallel", "Part Three"]),
            ("PartTwo", "--dist-url tcp://10.0.0.1:29500", ["--master-ip", "--master-port"]),
            ("PartThree", "--sync all-reduce", ["--sync", "Part Two"]),
            ("Preflight", "--parallel ddp", ["--parallel", "Part Three"])):
        said = complaint(part, words)
        assert says(said, words.split()[0], *facts)
        assert said.count("Part T") == sum(fact.startswith("Part T") for fact in facts)


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
    for words, flags in (("-N 4", ["-N"]), ("-M 10.0.0.1 -N 4 -R 0", ["-M", "-N", "-R"])):
        said = complaint("PartOne", words)
        assert says(said, *flags, "Part Two", "Part Three") and said.count("Part Two") == 1


SCRIPTS = [path for path in PROGRAMS if path.startswith("scripts/")]


@pytest.mark.parametrize("program", SCRIPTS)
def test_every_program_says_a_mistake_in_one_sentence(program):
    done = subprocess.run([sys.executable, program, "--no-such-flag"], cwd=ROOT, timeout=100,
                          capture_output=True, text=True)
    assert done.returncode == 2 and not done.stdout
    sentence, = done.stderr.splitlines()
    assert sentence.startswith("error: ") and says(sentence, "--help"), done.stderr
    assert not done.stderr.startswith("error: argument ")


def test_a_program_with_few_flags_says_there_is_no_such_flag_as_the_parts_do():
    for words in (["--no-such-flag=3"], ["--no-such-flag", "3", "-x"]):
        with pytest.raises(UsageError) as raised:
            SentenceParser().parse_args(words)
        assert str(raised.value) == f"there is no flag --no-such-flag {HELP}"


@pytest.mark.parametrize("words, facts", [
    (["-x"], ["there is no flag -x"]), (["-n"], ["-n needs a value"])])
def test_the_cluster_in_a_box_says_a_wrong_flag_in_one_line(words, facts):
    done = subprocess.run(["scripts/namespace_cluster.sh", *words], cwd=ROOT, timeout=100,
                          capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and says(done.stderr, *facts)


def test_no_program_has_a_parser_that_prints_its_usage():
    assert not [program for program in PROGRAMS if not program.endswith("worker.py")  # of ours
                and "argparse.ArgumentParser(" in (ROOT / program).read_text()]


@pytest.mark.parametrize("part", PARTS)
def test_every_part_answers_and_all_wrong_flags_are_named(part):
    said = complaint(part, "--lr 0.1 --amp --no-such-flag")
    assert says(said, "--lr", "--learning-rate", "--amp", "--precision bf16", "--no-such-flag")


def test_the_tables_name_flags_that_exist_and_each_other_name_once():
    flags = {flag for part in PARTS for flag in _parser(part).flags}
    assert {ours.split()[0] for ours in other_names.NAMES} <= flags
    others = Counter(name for names in (*other_names.NAMES.values(), *other_names.SENTENCES)
                     for name in names.split())
    assert set(others.values()) == {1} and not set(others) & flags
