"use strict";
// The OpenAPI document as a page. Every text becomes a text node, never HTML.

const element = (name, text, ...children) => {
  const made = document.createElement(name);
  if (text) made.textContent = text;
  made.append(...children);
  return made;
};

const resolved = (schema, all) => {
  const name = schema && schema.$ref && schema.$ref.split("/").pop();
  return name ? { title: name, ...all[name] } : schema || {};
};

const shortType = (schema) => {
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  const choices = schema.anyOf || schema.oneOf;
  if (choices) return choices.map(shortType).join(" | ");
  if (schema.type === "array") return `list of ${shortType(schema.items || {})}`;
  const limits = ["minimum", "exclusiveMinimum", "maximum", "maxLength", "maxItems"]
    .filter((key) => schema[key] !== undefined)
    .map((key) => `${key} ${schema[key]}`);
  return [schema.type || "any", ...limits].join(", ");
};

const fields = (schema, all) => {
  const whole = resolved(schema, all);
  const head = element("tr", "", element("th", "field"), element("th", "takes"));
  const body = element("table", "", head);
  for (const [name, field] of Object.entries(whole.properties || {})) {
    const needed = (whole.required || []).includes(name) ? " (required)" : "";
    const row = element("tr", "", element("td", "", element("code", name)));
    row.append(element("td", shortType(field) + needed));
    body.append(row);
  }
  return body;
};

const route = (method, path, operation, all) => {
  const title = element("summary");
  const verb = element("span", method.toUpperCase());
  verb.className = "method";
  title.append(verb, element("code", path), ` ${operation.summary || ""}`);
  const shown = element("details", "", title);
  const content = operation.requestBody && operation.requestBody.content;
  if (content) shown.append(fields(content["application/json"].schema, all));
  const answers = Object.entries(operation.responses || {});
  for (const [status, answer] of answers) {
    shown.append(element("div", `${status}: ${answer.description}`));
  }
  return shown;
};

fetch("openapi.json")
  .then((reply) => reply.json())
  .then((found) => {
    const all = (found.components && found.components.schemas) || {};
    const list = document.getElementById("routes");
    for (const [path, operations] of Object.entries(found.paths)) {
      for (const [method, operation] of Object.entries(operations)) {
        list.append(route(method, path, operation, all));
      }
    }
  })
  .catch((fault) => {
    document.getElementById("about").textContent = `openapi.json could not be read: ${fault}`;
  });
