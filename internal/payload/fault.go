package payload

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

// Fault is one reason why an answer is not a draft. Pointer (RFC 6901) says where; it is empty for the whole answer.
// Message completes "this value …" and repeats no text of the model: field names that the contract does not spell out
// are shortened and their unprintable characters escaped, values are never shown.
//
// Codes of the text: finish_reason, refusal, empty, unterminated, prose, fenced, several_values, syntax,
// duplicate_member, invalid_text, too_large, too_deep, number_range. Codes of the schema: required, unknown_field,
// not_allowed, type, enum, const, too_long, too_short, pattern, format, out_of_range, multiple_of, too_many_items,
// too_few_items, duplicate_items, contains, too_many_fields, too_few_fields, field_name, any_of, one_of, not, schema.
type Fault struct {
	Pointer string `json:"pointer"`
	Code    string `json:"code"`
	Message string `json:"message"`
}

const (
	maxFaults    = 20
	maxShownName = 40  // runes of a field name that the contract does not know
	maxShownText = 300 // bytes of the contract's own text in a message
)

func fault(at, code, format string, args ...any) Fault {
	return Fault{Pointer: at, Code: code, Message: fmt.Sprintf(format, args...)}
}

// escapePointer encodes one token.
var escapePointer = strings.NewReplacer("~", "~0", "/", "~1")

// pointer writes a JSON Pointer; shown, if not nil, decides how a token looks.
func pointer(path []string, shown func(string) string) string {
	var b strings.Builder
	for _, token := range path {
		if shown != nil {
			token = shown(token)
		}
		b.WriteByte('/')
		b.WriteString(escapePointer.Replace(token))
	}
	return b.String()
}

// shown is how a field name of the answer may be repeated.
func (c *Contract) shown(name string) string {
	if c.names[name] {
		return name
	}
	var b strings.Builder
	runes := 0
	for _, r := range name {
		if runes++; runes > maxShownName {
			b.WriteRune('…')
			break
		}
		if unicode.IsPrint(r) {
			b.WriteRune(r)
		} else {
			quoted := strconv.QuoteRuneToASCII(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
	}
	return b.String()
}

// settled puts faults into a fixed order, without repetition, and keeps the first 20.
func settled(faults []Fault) []Fault {
	slices.SortFunc(faults, func(a, b Fault) int {
		return cmp.Or(cmp.Compare(a.Pointer, b.Pointer), cmp.Compare(a.Code, b.Code), cmp.Compare(a.Message, b.Message))
	})
	faults = slices.Compact(faults)
	return faults[:min(len(faults), maxFaults)]
}

// Evidence is a fault without any text of the model, for records that hold no content: the code, and the pointer with "*"
// for each token that the contract does not spell out.
func (c *Contract) Evidence(f Fault) string {
	if f.Pointer == "" {
		return f.Code
	}
	tokens := strings.Split(f.Pointer, "/")[1:]
	for i, token := range tokens {
		if tokens[i] = unescapePointer.Replace(token); !c.names[tokens[i]] {
			tokens[i] = "*"
		}
	}
	return f.Code + " " + pointer(tokens, nil)
}

// violations turns what the validator found in value into faults.
func (c *Contract) violations(value any, err error) []Fault {
	if err == nil {
		return nil
	}
	var invalid *jsonschema.ValidationError
	if !errors.As(err, &invalid) {
		return []Fault{fault("", "schema", "cannot be held against the contract")} // fail closed
	}
	faults := c.flatten(value, invalid, nil)
	if len(faults) == 0 {
		faults = []Fault{fault("", "schema", "does not satisfy the contract")}
	}
	return faults
}

func (c *Contract) flatten(value any, e *jsonschema.ValidationError, faults []Fault) []Fault {
	at := pointer(e.InstanceLocation, c.shown)
	switch k := e.ErrorKind.(type) {
	case *kind.Required:
		return append(faults, c.missing(e.InstanceLocation, k.Missing)...)
	case *kind.DependentRequired:
		return append(faults, c.missing(e.InstanceLocation, k.Missing)...)
	case *kind.AdditionalProperties:
		for _, name := range k.Properties {
			faults = append(faults, c.unknown(append(slices.Clone(e.InstanceLocation), name)))
		}
		return faults
	case *kind.PropertyNames:
		return append(faults, c.misnamed(value, len(e.InstanceLocation), k.Property))
	case *kind.FalseSchema:
		if strings.HasSuffix(e.SchemaURL, "/unevaluatedProperties") || strings.HasSuffix(e.SchemaURL, "/additionalProperties") {
			return append(faults, c.unknown(e.InstanceLocation))
		}
	case *kind.AnyOf, *kind.OneOf:
		if branch := likelyBranch(e); branch != nil {
			return c.flatten(value, branch, faults)
		}
	case *kind.Contains, *kind.MinContains, *kind.MaxContains, *kind.Not:
	default:
		if len(e.Causes) > 0 {
			for _, cause := range e.Causes {
				faults = c.flatten(value, cause, faults)
			}
			return faults
		}
	}
	f := wording(e, c.shown)
	f.Pointer = at
	return append(faults, f)
}

func (c *Contract) missing(at []string, names []string) []Fault {
	var faults []Fault
	for _, name := range names {
		faults = append(faults, fault(pointer(append(slices.Clone(at), name), c.shown), "required", "is missing"))
	}
	return faults
}

func (c *Contract) unknown(at []string) Fault {
	return fault(pointer(at, c.shown), "unknown_field", "is not a field of the contract; leave it out")
}

// misnamed finds the field with a name that is not allowed. The validator reports the depth of its object reliably but not
// the path, which its later steps overwrite, so the field is looked up; without a pointer if there are several.
func (c *Contract) misnamed(value any, depth int, name string) Fault {
	var found [][]string
	var search func(v any, path []string)
	search = func(v any, path []string) {
		switch v := v.(type) {
		case map[string]any:
			if _, ok := v[name]; ok && len(path) == depth {
				found = append(found, append(slices.Clone(path), name))
			}
			for token, below := range v {
				if len(path) < depth {
					search(below, append(path, token))
				}
			}
		case []any:
			for i, below := range v {
				if len(path) < depth {
					search(below, append(path, strconv.Itoa(i)))
				}
			}
		}
	}
	search(value, nil)
	if len(found) == 1 {
		return fault(pointer(found[0], c.shown), "field_name", "is not an allowed field name")
	}
	return fault("", "field_name", "must not have a field named %q", c.shown(name))
}

// likelyBranch picks the alternative that the model meant: the only one whose type fits. nil if that is not clear.
func likelyBranch(e *jsonschema.ValidationError) *jsonschema.ValidationError {
	var likely *jsonschema.ValidationError
	for _, branch := range e.Causes {
		leaf := branch
		for len(leaf.Causes) == 1 {
			leaf = leaf.Causes[0]
		}
		if _, other := leaf.ErrorKind.(*kind.Type); other && len(leaf.InstanceLocation) == len(e.InstanceLocation) {
			continue
		}
		if likely != nil {
			return nil
		}
		likely = branch
	}
	return likely
}

// wording gives code and message of a violation that stands by itself.
func wording(e *jsonschema.ValidationError, shown func(string) string) Fault {
	switch k := e.ErrorKind.(type) {
	case *kind.Type:
		return fault("", "type", "must be %s, not %s", strings.Join(k.Want, " or "), k.Got)
	case *kind.Enum:
		return fault("", "enum", "must be one of %s", quoted(k.Want...))
	case *kind.Const:
		return fault("", "const", "must be %s", quoted(k.Want))
	case *kind.MaxLength:
		return fault("", "too_long", "must have at most %d characters, not %d", k.Want, k.Got)
	case *kind.MinLength:
		return fault("", "too_short", "must have at least %d characters, not %d", k.Want, k.Got)
	case *kind.Pattern:
		return fault("", "pattern", "must match the pattern %s", clipped(k.Want))
	case *kind.Format:
		return fault("", "format", "must be a valid %s", clipped(k.Want))
	case *kind.Minimum:
		return fault("", "out_of_range", "must be at least %s", plain(k.Want))
	case *kind.Maximum:
		return fault("", "out_of_range", "must be at most %s", plain(k.Want))
	case *kind.ExclusiveMinimum:
		return fault("", "out_of_range", "must be more than %s", plain(k.Want))
	case *kind.ExclusiveMaximum:
		return fault("", "out_of_range", "must be less than %s", plain(k.Want))
	case *kind.MultipleOf:
		return fault("", "multiple_of", "must be a multiple of %s", plain(k.Want))
	case *kind.MaxItems:
		return fault("", "too_many_items", "must have at most %d items, not %d", k.Want, k.Got)
	case *kind.MinItems:
		return fault("", "too_few_items", "must have at least %d items, not %d", k.Want, k.Got)
	case *kind.UniqueItems:
		return fault("", "duplicate_items", "must not hold the same item twice (items %d and %d)", k.Duplicates[0], k.Duplicates[1])
	case *kind.MaxProperties:
		return fault("", "too_many_fields", "must have at most %d fields, not %d", k.Want, k.Got)
	case *kind.MinProperties:
		return fault("", "too_few_fields", "must have at least %d fields, not %d", k.Want, k.Got)
	case *kind.Contains, *kind.MinContains:
		return fault("", "contains", "holds too few of the items that the contract asks for")
	case *kind.MaxContains:
		return fault("", "contains", "holds too many of the items that the contract limits")
	case *kind.Required:
		names := slices.Clone(k.Missing)
		for i := range names {
			names[i] = shown(names[i])
		}
		return fault("", "required", "lacks %s", strings.Join(names, ", "))
	case *kind.FalseSchema:
		return fault("", "not_allowed", "is not allowed here")
	case *kind.AnyOf:
		return fault("", "any_of", "matches none of the forms that the contract allows")
	case *kind.OneOf:
		if len(k.Subschemas) > 0 {
			return fault("", "one_of", "matches several forms of which the contract allows only one")
		}
		return fault("", "one_of", "matches none of the forms that the contract allows")
	case *kind.Not:
		return fault("", "not", "matches a form that the contract forbids")
	}
	return fault("", "schema", "does not satisfy the contract")
}

// quoted shows values of the contract as JSON.
func quoted(values ...any) string {
	texts := make([]string, len(values))
	for i, v := range values {
		b, err := json.Marshal(v)
		if err != nil {
			return "the values that the contract allows"
		}
		texts[i] = string(b)
	}
	return clipped(strings.Join(texts, ", "))
}

// clipped shortens text of the contract.
func clipped(s string) string {
	if len(s) <= maxShownText {
		return s
	}
	return strings.ToValidUTF8(s[:maxShownText], "") + "…"
}

// plain shows a bound of the contract.
func plain(r *big.Rat) string {
	if r.IsInt() {
		return clipped(r.Num().String())
	}
	f, _ := r.Float64()
	return strconv.FormatFloat(f, 'g', -1, 64)
}

// RepairPrompt is the next message to the model after an answer with faults: what is wrong, where, and what to answer.
// It holds nothing of the answer but the pointers.
func RepairPrompt(faults []Fault, schemaName string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Your last answer does not satisfy the contract %q.", schemaName)
	if len(faults) > 0 {
		b.WriteString(" Correct exactly this:\n")
	}
	for _, f := range faults {
		at := f.Pointer
		if at == "" {
			at = "the whole answer"
		}
		fmt.Fprintf(&b, "- %s: %s (%s)\n", at, f.Message, f.Code)
	}
	if len(faults) == 0 {
		b.WriteByte('\n')
	}
	b.WriteString("Answer again with the complete JSON object and nothing else: no explanation, no code fence, no second object.")
	return b.String()
}
