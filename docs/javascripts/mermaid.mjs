// Draws the diagrams of a page in the reader's browser. Where this library cannot be fetched, a diagram stays as text.
import mermaid from "https://cdn.jsdelivr.net/npm/mermaid@11.17.2/dist/mermaid.esm.min.mjs";

mermaid.initialize({ startOnLoad: false });
for (const code of document.querySelectorAll("code.language-mermaid")) {
  const figure = document.createElement("pre");
  figure.className = "mermaid";
  figure.textContent = code.textContent;
  code.parentElement.replaceWith(figure);
}
await mermaid.run();
