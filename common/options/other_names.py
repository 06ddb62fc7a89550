"""Names that other trainers, and older versions, have for this program's flags.

A flag's answer is this program's flag, with its value where the other name implied one; or, where
this program has no such flag, a sentence on what it does instead.
"""

CALLED, MEANT = "in this program it is called", "did you mean"  # before the name that is right

NAMES = {  # of pytorch/examples, torchrun, timm, Lightning, Hugging Face and Accelerate
    "--learning-rate": "--lr",
    "--weight-decay": "--wd",
    "--batch-size": "-b --batch --bs --global-batch-size",
    "--epochs": "--num-epochs --max-epochs --num-train-epochs",
    "--max-iterations": "--max-steps --max-iters --steps --iterations",
    "--optimizer": "--optim --opt --optimiser",
    "--schedule": "--scheduler --sched --lr-scheduler --lr-scheduler-type",
    "--accumulate": "--grad-accum --grad-accum-steps --gradient-accumulation-steps "
                    "--accumulate-grad-batches",
    "--precision": "--dtype --mixed-precision",
    "--precision bf16": "--amp --bf16",
    "--precision fp16": "--fp16 --half",
    "--num-nodes": "-n --world-size --nnodes --nodes --num-machines --num-processes",
    "--rank": "--node-rank --machine-rank",
    "--master-ip": "--master-addr --main-process-ip",
    "--master-ip and --master-port": "--dist-url --init-method --rdzv-endpoint",
    "--master-port": "--port --main-process-port",
    "--backend": "--dist-backend",
    "--loader workers:N": "-j --workers --num-workers --dataloader-num-workers",
    "--threads": "--num-threads",
    "--device": "--accelerator",
    "--device cuda": "--cuda --use-cuda --gpu",
    "--device cpu": "--cpu --no-cuda",
    "--workload": "--dataset --task",
    "--model": "-a --arch --model-name",
    "--image-size": "--img-size --resolution",
    "--data-dir": "--data --data-path --root",
    "--output-dir": "-o --output --out --logdir --log-dir --save-dir --default-root-dir",
    "--resume": "--ckpt --ckpt-path --checkpoint --resume-from --resume-from-checkpoint",
    "--checkpoint-every": "--save-every --save-steps --save-interval",
    "--log-every": "--log-interval --logging-steps --print-freq",
    "--validation": "--val-split --validation-split",
    "--label-smoothing": "--smoothing",
    "--batch-norm synchronised": "--sync-bn --sync-batchnorm",
    "--tracker": "--logger --report-to",
    "--tracker tensorboard": "--tensorboard",
    "--tracker wandb": "--wandb --use-wandb",
    "--bucket-mb": "--bucket-cap-mb",
    "--wire": "--comm-hook --ddp-comm-hook",
    "--parallel data-parallel": "--data-parallel",
    "--settings": "--config --cfg",
    "--debug": "--traceback",
}

SENTENCES = {
    "--gpus --num-gpus --devices --gpus-per-node":
        "each rank takes one GPU, so start as many ranks as there are GPUs, for instance with "
        "torchrun --nproc-per-node N",
    "--nproc-per-node --ntasks-per-node --rdzv-backend --rdzv-id --max-restarts --standalone":
        "it belongs to the launcher, before the program's name, as in torchrun --nproc-per-node 4 "
        "PartTwo/main.py",
    "--local-rank --gpu-id":
        "the ranks on one machine divide its GPUs among them, so leave it out",
    "--per-device-batch-size --per-device-train-batch-size --micro-batch-size":
        "--batch-size is the global batch, which the ranks share",
    "--warmup-epochs --warmup --warmup-steps --warmup-ratio":
        "warm-up is a number of epochs after the schedule's name, as in --schedule cosine:2",
    "--gamma --step-size --decay-epochs":
        "epochs and factor of the steps are part of the schedule, as in --schedule step:1:0.7",
    "--early-stopping --patience":
        "early stopping follows the fraction that validates, as in --validation 0.1:3:0.01",
    "--sync-every --local-steps":
        "the number of steps follows the strategy's name, as in --sync local-sgd:50",
    "--checkpoint-minutes":  # of a version before, as is the next
        "minutes are written with their unit, as in --checkpoint-every 10min",
    "--accept-changes":
        "changed settings are accepted with --resume auto:changed, or FILE:changed",
    "--clip-grad-norm --max-grad-norm --gradient-clip-val":
        "gradients are not clipped",
    "--ema --model-ema":
        "weights are not averaged over steps: the weights of the last step are evaluated",
    "--drop-last":
        "an epoch's last batch is dropped where it has fewer than 16 samples, or than a quarter of "
        "a smaller batch",
    "--wandb-project --wandb-name --wandb-mode":
        "wandb's own variables say it, as WANDB_PROJECT does, and --tracker wandb uses them",
    "--comet --comet-project --mlflow --neptune --clearml":
        "the trackers are TensorBoard, wandb or one of your own, with --tracker FILE.py:NAME; "
        "examples/ has MLflow's and Comet's",
    "--distributed --multiprocessing-distributed --ddp":
        "Part Two and Part Three are the distributed programs",
    "--strategy":
        "DistributedDataParallel is Part Three, and the strategies that average by hand are Part "
        "Two's --sync",
}

COUNTERPARTS = {name: ours for ours, names in NAMES.items() for name in names.split()}
SENTENCE_OF = {name: text for names, text in SENTENCES.items() for name in names.split()}
