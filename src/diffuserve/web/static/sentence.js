// Texts of the server as the page shows them. Pure.
const IS_NAME = /^\S*[\d_=-]/;

// Return a text that begins with a capital, unless its first word is a name: num_frames=17, tiny-flux.
export const capitalized = (text) =>
  IS_NAME.test(text) ? text : text.charAt(0).toUpperCase() + text.slice(1);
