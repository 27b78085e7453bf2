"""Look of the page: theme, style sheet, head. System fonts and inline SVG: loading it never leaves the machine."""

from __future__ import annotations

from pathlib import Path

import gradio as gr

CSS_PATH = Path(__file__).with_name("style.css")
FONT = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "sans-serif")
MONO = ("ui-monospace", "SF Mono", "Cascadia Code", "Menlo", "DejaVu Sans Mono", "monospace")

# Gradio follows the system's colour scheme; the choice made with the button outlives a reload.
HEAD = """
<meta name="color-scheme" content="light dark">
<script>
(() => {
  const apply = () => {
    const saved = localStorage.getItem("kvmm-scheme");
    if (saved) document.body.classList.toggle("dark", saved === "dark");
  };
  window.kvmmToggleScheme = () => {
    const dark = document.body.classList.toggle("dark");
    localStorage.setItem("kvmm-scheme", dark ? "dark" : "light");
  };
  // A preview in a bubble, large: Escape or a click closes it.
  window.kvmmEnlarge = (button) => {
    const dialog = document.createElement("dialog"), picture = button.querySelector("img").cloneNode();
    dialog.id = "enlarged";
    dialog.setAttribute("aria-label", picture.alt);
    dialog.append(picture);
    dialog.addEventListener("click", () => dialog.close());
    dialog.addEventListener("close", () => { dialog.remove(); button.focus(); });
    document.body.append(dialog);
    dialog.showModal();
  };
  const start = () => {
    apply();
    // Gradio sets the class once more when it mounts.
    const observer = new MutationObserver(() => {
      apply();
      if (document.querySelector("#kvmm-header")) observer.disconnect();
    });
    observer.observe(document.body, { childList: true, subtree: true });
    // On a phone the open sidebar would cover the page. It opens itself some time after it is there; closed once, it is
    // the visitor's.
    let ticks = 12;
    const timer = setInterval(() => {
      const open = document.querySelector("#sidebar.open .toggle-button");
      const closes = open && window.innerWidth < 900;
      if (closes) open.click();
      if (closes || (document.querySelector("#sidebar") && !ticks--)) clearInterval(timer);
    }, 200);
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
</script>
"""

# Two stacked cache pages, the lower one a quarter of the height: what a two-bit page is to a dense one.
LOGO = (
    '<svg viewBox="0 0 32 32" width="34" height="34" aria-hidden="true">'
    '<rect width="32" height="32" rx="8" fill="#0072B2"/>'
    '<rect x="7" y="7" width="18" height="11" rx="2" fill="#fff" opacity=".35"/>'
    '<rect x="7" y="21" width="18" height="4" rx="1.5" fill="#E69F00"/></svg>'
)
_SCHEME = (
    '<svg viewBox="0 0 24 24" width="18" height="18" fill="none" stroke="currentColor" stroke-width="2">'
    '<circle cx="12" cy="12" r="8"/><path d="M12 4a8 8 0 0 1 0 16z" fill="currentColor"/></svg>'
)


def header(model: str, device: str) -> str:
    """HTML of the page's header; ``model`` and ``device`` are already escaped."""
    return f"""
<header id="kvmm-header">
  {LOGO}
  <div class="title">
    <h1>kvmm</h1>
    <p>Ask a page, a picture or a recording, with a low-bit KV cache</p>
  </div>
  <div class="chips">
    <span class="chip" title="model">{model}</span>
    <span class="chip" title="device">{device}</span>
  </div>
  <button class="scheme" type="button" onclick="kvmmToggleScheme()" aria-label="Switch between light and dark">
    {_SCHEME}
  </button>
</header>"""


def theme() -> gr.themes.Base:
    """Neutral surfaces, one blue for actions, small radii."""
    blue = gr.themes.Color(
        name="kvmm",
        c50="#eef6fb",
        c100="#d6e9f5",
        c200="#aed3ea",
        c300="#7ab7db",
        c400="#3f95c8",
        c500="#0072B2",
        c600="#00639b",
        c700="#005382",
        c800="#06456a",
        c900="#0a3a58",
        c950="#07253a",
    )
    return gr.themes.Base(
        primary_hue=blue, secondary_hue=blue, neutral_hue="slate", radius_size="md", font=FONT, font_mono=MONO
    ).set(
        body_background_fill="#f6f7f9",
        body_background_fill_dark="#0d1117",
        body_text_color_subdued="#5b6472",
        body_text_color_subdued_dark="#9aa4b2",
        input_placeholder_color="#6b7482",
        background_fill_primary_dark="#151b24",
        background_fill_secondary_dark="#121821",
        border_color_primary_dark="#262e3a",
        block_label_background_fill_dark="#1b2330",
        block_background_fill="#ffffff",
        block_background_fill_dark="#151b24",
        block_border_color="#e3e6eb",
        block_border_color_dark="#262e3a",
        block_shadow="none",
        block_shadow_dark="none",
        block_label_text_weight="500",
        block_title_text_weight="600",
        input_background_fill="#ffffff",
        input_background_fill_dark="#10161e",
        input_border_width="1px",
        input_border_color="#d5dae1",
        input_border_color_dark="#2c3644",
        checkbox_label_background_fill="#f3f5f8",
        checkbox_label_background_fill_hover="#e9edf2",
        table_odd_background_fill_dark="#121821",
        table_even_background_fill_dark="#151b24",
        link_text_color_dark="#58aee2",
        link_text_color_hover_dark="#7fc3ec",
        button_primary_background_fill="*primary_500",
        button_primary_background_fill_hover="*primary_600",
        button_primary_background_fill_dark="*primary_500",
        button_primary_background_fill_hover_dark="*primary_600",
        button_secondary_background_fill="#ffffff",
        button_secondary_background_fill_hover="#f0f3f7",
        button_secondary_background_fill_dark="#1b2330",
        button_secondary_background_fill_hover_dark="#243044",
        button_secondary_border_color="#d5dae1",
        button_secondary_border_color_dark="#2c3644",
        color_accent_soft="*primary_50",
        color_accent_soft_dark="#10273a",
    )
