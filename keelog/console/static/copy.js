// Copies text, also where a page without TLS has no clipboard of its own.
export async function copyText(text, said) {
  let done = false;
  try {
    await navigator.clipboard.writeText(text);
    done = true;
  } catch {
    const field = document.createElement("textarea");
    field.value = text;
    field.className = "aside";
    document.body.append(field);
    field.select();
    done = document.execCommand("copy");
    field.remove();
  }
  if (said) {
    said.textContent = done ? "copied" : "this browser does not copy";
    setTimeout(() => { said.textContent = ""; }, 2500);
  }
}

export function start() {
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-copy], button[data-copy-of]");
    if (!button) return;
    const of = button.dataset.copyOf;
    const text = of ? document.getElementById(of)?.textContent : button.dataset.copy;
    copyText(text || location.href, document.getElementById("said"));
  });
}
