package payload

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/holdpoint/holdpoint"
)

// Contract is what a model's answer must be: a JSON object that satisfies a JSON Schema. It is immutable and safe for
// concurrent use.
type Contract struct {
	name   string
	schema *jsonschema.Schema
	names  map[string]bool // the field names that the schema itself spells out
}

// contractURL stands for the schema while it is compiled. Nothing is ever loaded from it.
const (
	contractBase = "contract:///"
	contractURL  = contractBase + "schema.json"
)

// schemaLimits bounds the schema file itself.
var schemaLimits = Limits{MaxBytes: 1 << 20, MaxDepth: 100}

// CompileContract compiles a JSON Schema 2020-12 document. Formats are asserted: a contract that says "format": "email"
// means it. References stay inside the document; anything that would have to be loaded is refused (fail closed). The
// error is invalid_policy, with a sentence that names the contract and the place in its schema.
func CompileContract(name string, schema []byte) (*Contract, error) {
	refuse := func(cause error, format string, args ...any) error {
		return holdpoint.Errorf(holdpoint.CodeInvalidPolicy, "The contract %s %s.", name, fmt.Sprintf(format, args...)).Wrap(cause)
	}
	if err := Check(schema, schemaLimits); err != nil {
		var e *holdpoint.Error
		errors.As(err, &e)
		return nil, refuse(err, "is not usable: %s", strings.TrimSuffix(e.Message, "."))
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		return nil, refuse(err, "is not valid JSON")
	}
	if _, ok := doc.(map[string]any); !ok {
		return nil, refuse(nil, "must be a JSON object")
	}
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft2020)
	compiler.UseLoader(noLoader{})
	compiler.AssertFormat()
	if err := compiler.AddResource(contractURL, doc); err != nil {
		return nil, refuse(err, "cannot be read as a JSON Schema")
	}
	compiled, err := compiler.Compile(contractURL)
	if err != nil {
		return nil, refuse(err, "is not a valid JSON Schema: %s", schemaProblem(err))
	}
	if compiled.DraftVersion != 2020 {
		return nil, refuse(nil, `must be JSON Schema 2020-12; set "$schema" to %s or leave it out`, jsonschema.Draft2020)
	}
	c := &Contract{name: name, schema: compiled, names: map[string]bool{}}
	c.collectNames(doc)
	return c, nil
}

// Name is the name the contract was compiled under.
func (c *Contract) Name() string { return c.name }

// noLoader refuses every document that is not part of the schema itself.
type noLoader struct{}

func (noLoader) Load(string) (any, error) {
	return nil, errors.New("references to other documents are not loaded")
}

// schemaProblem says in one line what is wrong with a schema. The schema is the operator's own text, so it may be quoted.
func schemaProblem(err error) string {
	var load *jsonschema.LoadURLError
	var invalid *jsonschema.ValidationError
	var pattern *jsonschema.InvalidRegexError
	switch {
	case errors.As(err, &load):
		return fmt.Sprintf("%q lies outside of it; put what you refer to into $defs", strings.TrimPrefix(load.URL, contractBase))
	case errors.As(err, &pattern):
		return fmt.Sprintf("the pattern %q is not supported (RE2 syntax, no look-around)", pattern.Regex)
	}
	if schemaErr := (*jsonschema.SchemaValidationError)(nil); errors.As(err, &schemaErr) && errors.As(schemaErr.Err, &invalid) {
		for len(invalid.Causes) > 0 {
			invalid = invalid.Causes[0]
		}
		return "at " + pointer(invalid.InstanceLocation, nil) + " " + wording(invalid, func(s string) string { return s }).Message
	}
	return strings.ReplaceAll(strings.TrimPrefix(err.Error(), "jsonschema: "), contractURL, "")
}

// collectNames finds every field name that the schema spells out. Only those are repeated as they are in faults.
func (c *Contract) collectNames(v any) {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			c.collectNames(item)
		}
	case map[string]any:
		for keyword, below := range v {
			switch below := below.(type) {
			case map[string]any:
				if keyword == "properties" || keyword == "dependentSchemas" || keyword == "dependentRequired" {
					for name := range below {
						c.names[name] = true
					}
				}
			case []any:
				if keyword == "required" {
					for _, name := range below {
						if s, ok := name.(string); ok {
							c.names[s] = true
						}
					}
				}
			}
			c.collectNames(below)
		}
	}
}
