// Selected runs: the bar says how many, and is only there when there are some.

function update() {
  const bar = document.querySelector(".batch");
  if (!bar) return;
  const count = document.querySelectorAll("main [name^='run.']:checked").length;
  bar.classList.toggle("idle", count === 0);
  bar.querySelector("[data-selected]").textContent = count ? `${count} selected` : "None selected";
  for (const each of bar.querySelectorAll("button")) each.disabled = count === 0;
}

document.addEventListener("change", (event) => {
  if (event.target.name?.startsWith("run.")) update();
});
document.addEventListener("limpet:shown", update);
update();
