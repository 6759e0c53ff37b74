"""What stopped the training of Llama 3 405B, as its authors counted it.

Source: The Llama 3 Herd of Models (2024, arXiv:2407.21783), section 3.3.4 and its table 5: 54 days on 16,384 H100 GPUs,
466 interruptions, of which 47 were planned. The table prints 30.1 % for faulty GPUs. That does not follow from its
counts, which add up to the 419 of the text: 148 of them are 35.3 %.
"""

from minidist.plan.failures.goodput import gpu_mtbf

DAYS = 54
GPUS = 16_384
PLANNED = 47
UNEXPECTED = {  # cause -> interruptions
    "faulty GPU": 148,
    "GPU HBM3 memory": 72,
    "software bug": 54,
    "network switch or cable": 35,
    "host maintenance": 32,
    "GPU SRAM memory": 19,
    "GPU system processor": 17,
    "NIC": 7,
    "NCCL watchdog timeout": 7,
    "silent data corruption": 6,
    "GPU thermal interface and sensor": 6,
    "SSD": 3,
    "power supply": 3,
    "server chassis": 2,
    "IO expansion board": 2,
    "dependency": 2,
    "CPU": 2,
    "system memory": 2,
}


def llama3_mtbf_hours() -> float:
    """The mean time between unexpected interruptions of the whole cluster."""
    return DAYS * 24 / sum(UNEXPECTED.values())


def llama3_gpu_mtbf_hours() -> float:
    """Hours between failures of one GPU and its share of everything else."""
    return gpu_mtbf(llama3_mtbf_hours(), GPUS)
