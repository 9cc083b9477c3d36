// What the browser keeps. Owns: that nothing of it leaves, and that a browser which keeps nothing
// is no fault. The key lives as long as the tab; everything else until it is deleted.

const PREFIX = "firsthand.";

function quietly(action, otherwise) {
  try {
    return action();
  } catch {
    return otherwise; // a private window, or a full store
  }
}

export const kept = (name) => quietly(() => localStorage.getItem(PREFIX + name), null);
export const keep = (name, value) => quietly(() => localStorage.setItem(PREFIX + name, value));
export const forget = (name) => quietly(() => localStorage.removeItem(PREFIX + name));

export function keptJson(name, otherwise) {
  const found = kept(name);
  return found === null ? otherwise : quietly(() => JSON.parse(found), otherwise);
}

let inMemory = "";

export const key = {
  get: () => quietly(() => sessionStorage.getItem(`${PREFIX}key`), null) ?? inMemory,
  set: (value) => {
    inMemory = value;
    quietly(() => sessionStorage.setItem(`${PREFIX}key`, value));
  },
};
