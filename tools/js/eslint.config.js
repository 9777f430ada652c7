// What the checks of `make lint` ask of the operator's page.

import js from "@eslint/js";
import globals from "globals";

const MARKUP = ["innerHTML", "outerHTML", "insertAdjacentHTML"];

export default [
  js.configs.recommended,
  {
    files: ["python/pulse/web/static/*.js"],
    languageOptions: { ecmaVersion: 2022, sourceType: "module", globals: globals.browser },
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: {
      eqeqeq: "error",
      "no-var": "error",
      "prefer-const": "error",
      "object-shorthand": "error",
      "no-unused-vars": ["error", { argsIgnorePattern: "^_", varsIgnorePattern: "^_" }],
      // The page writes text as text: what a job says must not become markup.
      "no-restricted-properties": [
        "error",
        ...MARKUP.map((property) => ({ property, message: "Make elements with h() of dom.js." })),
      ],
      "no-eval": "error",
      "no-implied-eval": "error",
      "no-new-func": "error",
    },
  },
];
