"""Photographed pages: every effect keeps shape, type and most of the print, and changes the page."""

from __future__ import annotations

import random

import pytest
import torch

from training import camera
from training.augment import render_pages


@pytest.fixture
def ink():
    torch.manual_seed(0)
    random.seed(0)
    page = torch.zeros(6, 1, 168, 140)
    page[:, :, 40:60, 30:110] = 1.0
    page[:, :, 100:104, 20:120] = 0.7
    return page


@pytest.mark.parametrize("name", ["shadow", "folds", "coffee", "shake", "fade", "fax"])
def test_effects_keep_the_print_readable(ink, name):
    x = (1 - 0.9 * ink).expand(-1, 3, -1, -1).contiguous()
    y = getattr(camera, name)(x)
    assert y.shape == x.shape and y.dtype == x.dtype and torch.isfinite(y).all()
    assert not torch.equal(x, y)
    dark, paper = y[:, :, 45:55, 40:100].mean((1, 2, 3)), y[:, :, 65:95, 40:100].mean((1, 2, 3))
    assert (dark < paper - 0.05).all()


def test_a_photograph_knows_where_the_page_lies(ink):
    seen, page = camera.photograph(ink)
    assert seen.shape == page.shape == ink.shape
    assert page.min() >= 0 and page.max() <= 1 and page.mean() > 0.7
    assert (seen[page == 0] < 0.02).all()  # no print beyond the page
    desk = camera.on_desk(torch.full((6, 3, 168, 140), 2.0), page)
    outside = (page == 0).expand(-1, 3, -1, -1)
    assert (desk[outside] < 1.5).all() and (desk[(page == 1).expand(-1, 3, -1, -1)] == 2.0).all()


def test_the_back_of_the_sheet_is_mirrored(ink):
    ink = torch.cat([torch.zeros(1, 1, 168, 140), ink[:1]])
    ink[1, :, :, 70:] = 0
    front = camera.show_through(ink)
    assert torch.equal(front.maximum(ink), front)
    assert front[0, 0, 50, 100] > 0 and front[0, 0, 50, 40] == 0


def test_photographed_pages_have_no_characters_in_place(ink):
    shade = torch.tensor([[250] * 3 + [10] * 3] * 40, dtype=torch.uint8)
    pages = (ink[:1, 0] * 255).byte().expand(40, -1, -1).contiguous()
    pixels, in_place = render_pages(pages, shade, training=True)
    assert pixels.shape == (40, 3, 168, 140) and torch.isfinite(pixels).all()
    assert 8 < (~in_place).sum() < 25  # warped or photographed
    clean, still = render_pages(pages, shade, training=False)
    assert still.all() and torch.equal(clean[0], clean[1])
