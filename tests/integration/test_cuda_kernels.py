"""A denoising step of FLUX.1-schnell at full size stays within bounds on kernels and memory traffic."""

from support.flux_step import LANDSCAPE, SCHNELL, attention_flops, count_step

GIGA, TERA = 10**9, 10**12


def test_a_step_of_one_image_stays_within_its_bounds() -> None:
    assert LANDSCAPE.tokens == 4_336
    counter = count_step([LANDSCAPE])
    assert counter.total.kernels <= 1_716
    assert counter.of("elementwise").bytes <= 122 * GIGA
    assert counter.of("attention").kernels == SCHNELL.num_layers + SCHNELL.num_single_layers
    assert 65 * TERA < counter.of("product").flops + attention_flops([LANDSCAPE]) < 70 * TERA
