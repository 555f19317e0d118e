// Times come as UTC, with their milliseconds in data-ms; here they are written in the chosen zone.
import { keep, kept } from "./kept.js";

let zone = kept("zone", "local");
const parts = { year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit",
                minute: "2-digit", second: "2-digit", hourCycle: "h23" };
let format = made();

function made() {
  return new Intl.DateTimeFormat("en-CA", zone === "utc" ? { ...parts, timeZone: "UTC" } : parts);
}

// Offset of a moment from UTC, as UTC+5:45: it changes with the season.
export function zoneName(ms) {
  if (zone === "utc") return "UTC";
  const minutes = -new Date(ms).getTimezoneOffset();
  if (minutes === 0) return "UTC";
  const hours = Math.floor(Math.abs(minutes) / 60);
  const rest = Math.abs(minutes) % 60;
  return `UTC${minutes < 0 ? "−" : "+"}${hours}${rest ? `:${String(rest).padStart(2, "0")}` : ""}`;
}

function written(ms, form) {
  const found = Object.fromEntries(format.formatToParts(ms).map((one) => [one.type, one.value]));
  const day = `${found.year}-${found.month}-${found.day}`;
  const clock = `${found.hour}:${found.minute}:${found.second}`;
  const milli = String(((ms % 1000) + 1000) % 1000).padStart(3, "0");
  if (form === "full") return `${day} ${clock}.${milli} ${zoneName(ms)}`;
  if (form === "second") return `${clock} ${zoneName(ms)}`;
  const now = Object.fromEntries(format.formatToParts(Date.now()).map((one) => [one.type, one.value]));
  const isToday = day === `${now.year}-${now.month}-${now.day}`;
  return isToday ? `${clock}.${milli}` : `${day.slice(5)} ${clock}`;
}

export function writeTimes(root) {
  for (const one of root.querySelectorAll("time[data-ms]")) {
    const ms = Number(one.dataset.ms);
    if (!Number.isFinite(ms) || Math.abs(ms) > 8.64e15) continue;
    one.textContent = written(ms, one.dataset.form ?? "short");
    one.title = one.dateTime;
  }
  for (const one of root.querySelectorAll("[data-zone]")) one.textContent = zoneName(Date.now());
}

export function switchZone() {
  zone = zone === "utc" ? "local" : "utc";
  keep("zone", zone);
  format = made();
  writeTimes(document);
}
