"""Names that other trainers, and older versions, have for this program's flags and values.

A flag's answer is this program's flag, with its value where the other name implied one; or, where
this program has no such flag, a sentence on what it does instead.
"""

from collections.abc import Iterable

NAMES = {
    "--learning-rate": "--lr --base-lr --max-lr --peak-lr --init-lr --initial-lr",
    "--weight-decay": "--wd --l2",
    "--momentum": "--mom --beta1",
    "--batch-size": "-b -bs --batch --bs --batchsize --global-batch-size --train-batch-size",
    "--epochs": "--num-epochs --max-epochs --n-epochs --nepochs --num-train-epochs",
    "--max-iterations": "--max-steps --max-iters --max-iter --num-steps --steps --iterations "
                        "--iters --train-steps --total-steps --num-iterations --num-iters "
                        "--limit-train-batches",
    "--optimizer": "--optim --opt --optimiser",
    "--optimizer adam": "--adam --use-adam",
    "--optimizer nesterov": "--nesterov",
    "--schedule": "--scheduler --sched --lr-scheduler --lr-schedule --lr-sched "
                  "--lr-scheduler-type --lr-policy",
    "--schedule cosine": "--cosine --cos --cosine-lr",
    "--accumulate": "--grad-accum --grad-accumulation --gradient-accumulation --grad-accum-steps "
                    "--gradient-accumulation-steps --accumulation-steps --accum-steps "
                    "--accumulate-grad-batches --update-freq",
    "--precision": "--dtype --mixed-precision --data-type",
    "--precision bf16": "--amp --bf16 --bfloat16 --use-amp --autocast",
    "--precision fp16": "--fp16 --half --float16",
    "--precision float32": "--fp32 --float32 --no-amp",
    "--precision float64": "--fp64 --float64 --double",
    "--seed": "--random-seed --manual-seed --random-state --rng-seed",
    "--num-nodes": "-n --world-size --nnodes --nodes --n-nodes --num-machines --num-processes "
                   "--nprocs --num-ranks --np",
    "--rank": "--node-rank --machine-rank --global-rank --node-id --dist-rank --nr",
    "--master-ip": "--master-addr --master-address --main-process-ip --master",
    "--master-ip and --master-port": "--dist-url --init-method --rdzv-endpoint --coordinator",
    "--master-port": "--port --main-process-port --dist-port",
    "--backend": "--dist-backend --distributed-backend --ddp-backend",
    "--interface": "--ifname --iface --nic --network-interface",
    "--timeout": "--dist-timeout --ddp-timeout",
    "--loader workers:N": "-j --workers --num-workers --nworkers --n-workers --num-data-workers "
                          "--dataloader-num-workers --data-workers",
    "--threads": "--num-threads --n-threads --nthreads --omp-num-threads --cpu-threads",
    "--device": "--accelerator",
    "--device cuda": "--cuda --use-cuda --gpu --use-gpu",
    "--device cpu": "--cpu --use-cpu --no-cuda --disable-cuda --no-gpu",
    "--workload": "--dataset --dataset-name --data-set --task",
    "--model": "-a --arch --architecture --model-name --net --network --backbone",
    "--image-size": "--img-size --imgsz --imsize --input-size --img-dim --resolution --resize",
    "--data-dir": "--data --data-path --data-root --dataroot --datadir --dataset-dir "
                  "--dataset-path --dataset-root --image-dir --root",
    "--output-dir": "-o --output --out --out-dir --outdir --outputs --output-path --save-dir "
                    "--save-path --log-dir --logdir --results-dir --work-dir --run-dir --exp-dir "
                    "--ckpt-dir --checkpoint-dir --default-root-dir",
    "--resume": "--ckpt --ckpt-path --checkpoint --checkpoint-path --resume-from --resume-path "
                "--resume-from-checkpoint --restore --load --load-from --load-checkpoint "
                "--continue-from",
    "--checkpoint-every": "--save-every --save-interval --save-freq --save-steps --ckpt-every "
                          "--ckpt-interval --checkpoint-interval --checkpoint-freq",
    "--log-every": "--log-interval --log-freq --log-frequency --log-steps --logging-steps "
                   "--log-every-n-steps --print-freq --print-every --print-interval --disp-freq",
    "--validation": "--validation-fraction --val-split --val-fraction --val-frac --val-size "
                    "--val-ratio --valid-size --valid-split --validation-split",
    "--label-smoothing": "--smoothing --label-smooth",
    "--batch-norm synchronised": "--sync-bn --syncbn --sync-batchnorm --sync-batch-norm "
                                 "--use-sync-bn",
    "--tta": "--test-time-augmentation",
    "--cutout": "--cutout-size --cutout-length",
    "--crop-padding": "--padding --pad",
    "--tracker": "--logger --report-to",
    "--tracker tensorboard": "--tensorboard --use-tensorboard --tb",
    "--tracker wandb": "--wandb --use-wandb",
    "--profile": "--profiler --trace",
    "--bucket-mb": "--bucket-cap-mb --bucket-size --bucket-size-mb --ddp-bucket-cap-mb",
    "--wire": "--comm-hook --ddp-comm-hook --gradient-compression --grad-compression",
    "--sync": "--sync-mode --sync-method",
    "--parallel data-parallel": "--data-parallel --dataparallel",
    "--settings": "--config --cfg --conf --config-file --config-path --settings-file",
    "--debug": "--traceback",
}

SENTENCES = {
    "--gpus --num-gpus --n-gpus --n-gpu --ngpu --ngpus --gpus-per-node --devices --num-devices":
        "each rank takes one GPU, so start as many ranks as there are GPUs, for instance with "
        "torchrun --nproc-per-node N",
    "--nproc-per-node --nproc --procs-per-node --ntasks-per-node --rdzv-backend --rdzv-id "
    "--max-restarts --standalone":
        "it belongs to the launcher, before the program's name, as in torchrun --nproc-per-node 4 "
        "PartTwo/main.py",
    "--local-rank --local-world-size --gpu-id --gpu-ids --device-id":
        "the ranks on one machine divide its GPUs among them, so leave it out",
    "--per-device-batch-size --per-gpu-batch-size --local-batch-size --micro-batch-size "
    "--per-device-train-batch-size --batch-size-per-gpu":
        "--batch-size is the global batch, which the ranks share",
    "--warmup-epochs --warmup --lr-warmup --lr-warmup-epochs --warmup-steps --warmup-iters "
    "--lr-warmup-steps --num-warmup-steps --warmup-ratio":
        "warm-up is a number of epochs after the schedule's name, as in --schedule cosine:2",
    "--gamma --step-epochs --lr-gamma --lr-decay-rate --step-size --lr-step-size --lr-step "
    "--decay-epochs":
        "epochs and factor of the steps are part of the schedule, as in --schedule step:1:0.7",
    "--early-stopping --early-stop --patience --early-stopping-patience":
        "early stopping follows the fraction that validates, as in --validation 0.1:3:0.01",
    "--sync-every --local-steps --inner-steps --sync-interval --sync-period":
        "the number of steps follows the strategy's name, as in --sync local-sgd:50",
    "--outer-learning-rate --outer-momentum --outer-lr":
        "the outer optimizer's numbers follow the strategy's name, as in --sync diloco:50:0.7:0.9",
    "--checkpoint-minutes":
        "minutes are written with their unit, as in --checkpoint-every 10min",
    "--accept-changes":
        "changed settings are accepted with --resume auto:changed, or FILE:changed",
    "--clip --clip-grad --clip-grad-norm --grad-clip --max-grad-norm --gradient-clip-val":
        "gradients are not clipped",
    "--ema --ema-decay --use-ema --model-ema --model-ema-decay --weight-average":
        "weights are not averaged over steps: the weights of the last step are evaluated",
    "--bias-rate --bias-lr":
        "biases have the learning rate of the weights",
    "--smallest-batch --drop-last":
        "an epoch's last batch is dropped where it has fewer than 16 samples, or than a quarter of "
        "a smaller batch",
    "--wandb-project --wandb-entity --wandb-name --wandb-run-name --wandb-group --wandb-mode":
        "wandb's own variables say it, as WANDB_PROJECT does, and --tracker wandb uses them",
    "--comet --use-comet --comet-ml --comet-project --comet-project-name --comet-workspace "
    "--comet-api-key":
        "Comet is an example of a tracker of your own: --tracker "
        "examples/comet_tracker.py:CometTracker",
    "--neptune --use-neptune --clearml --use-clearml --aim":
        "the trackers are TensorBoard, MLflow, wandb or one of your own, with --tracker "
        "FILE.py:NAME",
    "--distributed --multiprocessing-distributed --ddp --use-ddp --dist":
        "Part Two and Part Three are the distributed programs",
    "--strategy --distributed-strategy --parallel-strategy":
        "DistributedDataParallel is Part Three, and the strategies that average by hand are Part "
        "Two's --sync",
}

VALUES = (  # names of one thing, whichever of them the flag at hand has
    ("float32", "fp32", "f32", "float", "single", "32", "full"),
    ("bf16", "bfloat16", "bf16-mixed", "bfloat", "bf16-compress"),
    ("fp16", "float16", "f16", "half", "16", "16-mixed", "fp16-mixed", "fp16-compress"),
    ("float64", "fp64", "f64", "double", "64"),
    ("cuda", "gpu", "cuda:0"),
    ("one-cycle", "1cycle", "onecyclelr"),
    ("cosine", "cos", "cosineannealing", "cosine-annealing", "cosineannealinglr"),
    ("step", "steplr", "step-lr"),
    ("linear", "linearlr"),
    ("constant", "fixed", "constantlr"),
    ("nesterov", "nag", "sgd-nesterov"),
    ("synchronised", "sync", "syncbn", "sync-bn", "global"),
    ("data-parallel", "dp"),
    ("ddp", "distributed-data-parallel", "distributeddataparallel"),
    ("model-split", "model-parallel"),
    ("tensorboard", "tb"),
    ("wandb", "weights-and-biases", "wandb-offline"),
    ("comet", "comet-ml", "cometml"),
)

VALUE_SENTENCES = {
    ("--optimizer", "adamw"):
        "AdamW is not offered: adam adds the decay to the gradient",
    ("--bucket-mb", "auto"):
        "the size is not measured, so that the same command gives the same bits; 1 is the default",
    ("--sync", "ddp"):
        "DistributedDataParallel is Part Three",
    ("--tracker", "comet"):
        "Comet is an example of a tracker of your own: --tracker "
        "examples/comet_tracker.py:CometTracker",
}
RELATIVES = ("adamw", "nadam", "radam", "adamax", "sgdw", "adan", "adagrad")  # not misspelt


COUNTERPARTS = {name: ours for ours, names in NAMES.items() for name in names.split()}
SENTENCE_OF = {name: text for names, text in SENTENCES.items() for name in names.split()}


def other_value(flag: str, word: str, choices: Iterable[str]) -> str:
    """Why `flag` has no value that others call `word`, or its name among `choices` here; or ""."""
    names = next((group for group in VALUES if word in group), ())
    answers = [VALUE_SENTENCES[flag, name] for name in names or (word,)
               if (flag, name) in VALUE_SENTENCES]
    answers += [f"in this program it is called {name}" for name in choices if name in names]
    return answers[0] if answers else ""
