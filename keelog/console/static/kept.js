// What this browser remembers: the zone of times, the colours. Without storage nothing is kept.
export function kept(name, usual) {
  try { return localStorage.getItem(`keelog-${name}`) ?? usual; } catch { return usual; }
}

export function keep(name, value) {
  try { localStorage.setItem(`keelog-${name}`, value); } catch { /* forbidden: for this page alone */ }
}
