"use strict";
// Sorts a table by the column whose heading was pressed: numbers where the cell has one for it, text otherwise.
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const heading = button.closest("th");
    const table = heading.closest("table");
    const index = [...heading.parentNode.children].indexOf(heading);
    const falling = heading.getAttribute("aria-sort") === "ascending";
    for (const other of heading.parentNode.children) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", falling ? "descending" : "ascending");
    const key = (row) => row.children[index].dataset.value ?? row.children[index].textContent;
    const order = (a, b) => {
      const [x, y] = [key(a), key(b)];
      const numbers = x !== "" && y !== "" && !Number.isNaN(Number(x)) && !Number.isNaN(Number(y));
      return numbers ? Number(x) - Number(y) : x.localeCompare(y);
    };
    const body = table.tBodies[0];
    const rows = [...body.rows].sort(order);
    if (falling) rows.reverse();
    body.append(...rows);
  });
}
