// The page at /docs: openapi.json as plain tables.
"use strict";

function element(name, text, className = "") {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  made.className = className;
  return made;
}

function table(heads, rows) {
  const made = element("table");
  for (const [i, cells] of [heads, ...rows].entries()) {
    const row = element("tr");
    for (const cell of cells) row.append(element(i ? "td" : "th", cell));
    made.append(row);
  }
  return made;
}

function resolve(api, schema) {
  if (schema?.$ref) return resolve(api, api.components.schemas[schema.$ref.split("/").pop()]);
  return schema ?? {};
}

function typeOf(api, schema) {
  const full = resolve(api, schema);
  const several = full.anyOf ?? full.oneOf;
  if (several && !full.properties) return several.map((one) => typeOf(api, one)).filter((t) => t !== "null").join(" or ");
  if (full.type === "array") return "list of " + typeOf(api, full.items);
  return schema.$ref ? full.title : full.type ?? "anything";
}

function bounds(schema) {
  const words = [];
  if (schema.minimum !== undefined) words.push("at least " + schema.minimum);
  if (schema.maximum !== undefined) words.push("at most " + schema.maximum);
  if (schema.default !== undefined && schema.default !== null) words.push("default " + JSON.stringify(schema.default));
  return words.join(", ");
}

function fields(api, schema) {
  const full = resolve(api, schema);
  const objects = full.properties ? [full] : (full.anyOf ?? []).map((one) => resolve(api, one));
  return objects.map((object) =>
    table(
      ["field", "type", "meaning"],
      Object.entries(object.properties ?? {}).map(([name, field]) => [
        name,
        typeOf(api, field),
        [field.description, bounds(field)].filter(Boolean).join(" · "),
      ]),
    ),
  );
}

function operation(api, path, method, about) {
  const card = element("section", undefined, "card");
  const title = element("h2");
  title.append(element("code", method.toUpperCase() + " ", "method"), element("code", path));
  card.append(title, element("p", about.description));
  if (about.parameters?.length) {
    card.append(element("h3", "Parameters"));
    const rows = about.parameters.map((p) => [
      p.name,
      typeOf(api, p.schema),
      [p.schema.description ?? p.description, bounds(p.schema)].filter(Boolean).join(" · "),
    ]);
    card.append(table(["name", "type", "meaning"], rows));
  }
  const body = about.requestBody?.content["application/json"].schema;
  if (body) {
    card.append(element("h3", "Body"), ...fields(api, body));
    const example = resolve(api, body).examples?.[0];
    if (example) {
      const command = `curl ${location.origin}${path} -H 'Content-Type: application/json' \\\n  -d '${JSON.stringify(example)}'`;
      card.append(element("pre", command));
    }
  }
  const good = about.responses["200"]?.content?.["application/json"]?.schema;
  if (good) card.append(element("h3", "Answer"), ...fields(api, good));
  const others = Object.entries(about.responses).filter(([status]) => status !== "200");
  if (others.length) {
    card.append(element("h3", "Refusals, each with a sentence in detail"));
    card.append(table(["status", "meaning"], others.map(([status, { description }]) => [status, description])));
  }
  return card;
}

fetch("openapi.json")
  .then((answer) => answer.json())
  .then((api) => {
    const token = api.security ? " Send the header Authorization: Bearer TOKEN." : "";
    document.getElementById("about").textContent = `aplc ${api.info.version}. ${api.info.summary}${token}`;
    const cards = Object.entries(api.paths).flatMap(([path, methods]) =>
      Object.entries(methods).map(([method, about]) => operation(api, path, method, about)),
    );
    document.getElementById("paths").replaceChildren(...cards);
  });
