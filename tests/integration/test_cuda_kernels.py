"""A denoising step of FLUX.1-schnell at full size stays within bounds on kernels and memory traffic."""

from diffuserve.domain.models.cost import Workload
from diffuserve.models.layers.joint.packing import Grid, SequenceShape
from support.flux_step import LANDSCAPE, SCHNELL, attention_flops, count_step

GIGA, TERA = 10**9, 10**12


def test_a_step_of_one_image_stays_within_its_bounds() -> None:
    assert LANDSCAPE.tokens == 4_336
    counter = count_step([LANDSCAPE])
    assert counter.total.kernels <= 700
    assert counter.of("elementwise").bytes <= 20 * GIGA
    assert counter.of("attention").kernels == SCHNELL.num_layers + SCHNELL.num_single_layers
    assert 65 * TERA < counter.of("product").flops + attention_flops([LANDSCAPE]) < 70 * TERA
    assert counter.peak_bytes <= SCHNELL.step_bytes(Workload(1, 4_336, 256, 1_360 * 768, 4), item_bytes=2)


def test_images_in_one_step_have_hardly_more_traffic_than_apart() -> None:
    shapes = [LANDSCAPE, SequenceShape(256, Grid(32, 64)), SequenceShape(512, Grid(64, 64))]
    apart = [count_step([shape]).of("elementwise").bytes for shape in shapes]
    assert count_step(shapes).of("elementwise").bytes <= 1.1 * sum(apart)
