package payload

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/holdpoint/holdpoint"
)

// Verdict is what became of a model's answer. Class is empty and Draft set, or Class is set and Faults say why.
type Verdict struct {
	Draft  []byte // the exact JSON text of the object: numbers keep their lexeme, members their order
	Class  holdpoint.FailureClass
	Faults []Fault // ordered by pointer, at most 20
}

// stopReasons are the finish reasons that end an answer before it is one, by provider spelling in lower case. Every
// other reason, also an unknown one, goes on to the parser: an answer that was cut off does not parse.
var stopReasons = map[string]holdpoint.FailureClass{
	"length": holdpoint.ClassTruncated, "max_tokens": holdpoint.ClassTruncated, "max_output_tokens": holdpoint.ClassTruncated,
	"model_length": holdpoint.ClassTruncated, "incomplete": holdpoint.ClassTruncated, "pause_turn": holdpoint.ClassTruncated,
	"model_context_window_exceeded": holdpoint.ClassTruncated, "cancelled": holdpoint.ClassTruncated,
	"canceled": holdpoint.ClassTruncated, "timeout": holdpoint.ClassTruncated, "error": holdpoint.ClassTruncated,
	"content_filter": holdpoint.ClassRefusal, "content_filtered": holdpoint.ClassRefusal, "refusal": holdpoint.ClassRefusal,
	"safety": holdpoint.ClassRefusal, "recitation": holdpoint.ClassRefusal, "blocklist": holdpoint.ClassRefusal,
	"prohibited_content": holdpoint.ClassRefusal, "spii": holdpoint.ClassRefusal, "guardrail_intervened": holdpoint.ClassRefusal,
	"error_toxic": holdpoint.ClassRefusal, "context_length_exceeded": holdpoint.ClassContextTooLong,
}

// stopFaults say what a stop reason means.
var stopFaults = map[holdpoint.FailureClass]Fault{
	holdpoint.ClassTruncated:      {Code: "finish_reason", Message: "the answer was cut off before it was complete; answer shorter or allow more tokens"},
	holdpoint.ClassRefusal:        {Code: "refusal", Message: "the model refused, or a filter stopped the answer"},
	holdpoint.ClassContextTooLong: {Code: "finish_reason", Message: "the input did not fit into the model's context; send less"},
}

// Judge decides whether output is a draft. output is a JSON object, or a JSON string that holds the raw text of the
// model. finishReason is the provider's word ("" if unknown) and is looked at before anything is parsed.
//
// The classes are truncated (cut off, empty, or JSON that ends too early: never repaired by closing braces), refusal,
// context_too_long, not_json (prose, code fences, several values, malformed or ambiguous JSON) and schema. A value that
// is not an object is never a draft, whatever the schema says.
func (c *Contract) Judge(output []byte, finishReason string, l Limits) Verdict {
	if class, stopped := stopReasons[strings.ToLower(strings.TrimSpace(finishReason))]; stopped {
		return Verdict{Class: class, Faults: []Fault{stopFaults[class]}}
	}
	if len(output) > l.bytes() {
		return failed(holdpoint.ClassSchema, "too_large", "the answer must not be larger than %d bytes", l.bytes())
	}
	text, verdict := rawText(output)
	if verdict != nil {
		return *verdict
	}
	if err := bounded(text, l); err != nil {
		return failed(holdpoint.ClassSchema, "too_deep", "the answer must not be nested deeper than %d levels", l.depth())
	}
	if verdict := c.oneValue(text); verdict != nil {
		return *verdict
	}
	faults := c.check(text)
	if len(faults) > 0 {
		return Verdict{Class: holdpoint.ClassSchema, Faults: faults}
	}
	return Verdict{Draft: bytes.Clone(text)}
}

func failed(class holdpoint.FailureClass, code, format string, args ...any) Verdict {
	return Verdict{Class: class, Faults: []Fault{fault("", code, format, args...)}}
}

// rawText unwraps a JSON string that holds the model's text. What is not such a string is the text itself.
func rawText(output []byte) ([]byte, *Verdict) {
	text := bytes.TrimSpace(output)
	if len(text) > 0 && text[0] == '"' {
		s := scanner{doc: text}
		decoded, _, err := s.text()
		switch {
		case err == nil && s.pos == len(text):
			text = bytes.TrimSpace(decoded)
		case err != nil && err.flaw != flawEnd && err.flaw != flawSyntax:
			v := failed(holdpoint.ClassNotJSON, "invalid_text", "%s", string(err.flaw))
			return nil, &v
		}
	} else if string(text) == "null" {
		text = nil
	}
	if len(text) == 0 {
		v := failed(holdpoint.ClassTruncated, "empty", "the answer is empty")
		return nil, &v
	}
	return text, nil
}

// oneValue says why text is not exactly one JSON value, nil if it is.
func (c *Contract) oneValue(text []byte) *Verdict {
	const fence = "```"
	refuse := func(class holdpoint.FailureClass, code, format string, args ...any) *Verdict {
		v := failed(class, code, format, args...)
		return &v
	}
	if rest, fenced := bytes.CutPrefix(text, []byte(fence)); fenced {
		_, after, closed := bytes.Cut(rest, []byte(fence))
		switch {
		case !closed:
			return refuse(holdpoint.ClassTruncated, "unterminated", "the answer ends inside a code fence")
		case len(bytes.TrimSpace(after)) == 0:
			return refuse(holdpoint.ClassNotJSON, "fenced", "the answer must be bare JSON, without a code fence")
		}
		return refuse(holdpoint.ClassNotJSON, "prose", "the answer must be JSON and nothing else")
	}
	s := newScanner(text)
	if err := s.value(nil); err != nil {
		return c.unscanned(text, err)
	}
	rest := bytes.TrimSpace(text[s.pos:])
	if len(rest) == 0 {
		return nil
	}
	rest = bytes.TrimLeft(rest, ", \t\r\n")
	another := newScanner(rest)
	if len(rest) > 0 && (rest[0] == '{' || rest[0] == '[' || another.document(nil) == nil) {
		return refuse(holdpoint.ClassNotJSON, "several_values", "the answer must be one JSON object, not several values")
	}
	return refuse(holdpoint.ClassNotJSON, "prose", "the answer must end with its JSON object; nothing may follow")
}

func (c *Contract) unscanned(text []byte, err *scanError) *Verdict {
	v := Verdict{Class: holdpoint.ClassNotJSON}
	slices.Reverse(err.tokens)
	at := pointer(err.tokens, c.shown)
	switch {
	case err.flaw == flawEnd:
		v.Class = holdpoint.ClassTruncated
		v.Faults = []Fault{fault(at, "unterminated", "the JSON ends before it is complete; answer shorter or allow more tokens")}
	case err.flaw == flawDuplicate:
		v.Faults = []Fault{fault(at, "duplicate_member", "this field must be given once")}
	case err.flaw == flawUTF8 || err.flaw == flawNUL || err.flaw == flawSurrogate:
		v.Faults = []Fault{fault(at, "invalid_text", "%s", string(err.flaw))}
	case text[0] == '{' || text[0] == '[' || text[0] == '"':
		v.Faults = []Fault{fault(at, "syntax", "the JSON is not well-formed at byte %d of the answer", err.offset)}
	default:
		v.Faults = []Fault{fault("", "prose", "the answer must start with its JSON object; nothing may come before")}
	}
	return &v
}

// check holds a well-formed value against the schema.
func (c *Contract) check(text []byte) []Fault {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return []Fault{fault("", "syntax", "the JSON is not well-formed")}
	}
	if _, object := value.(map[string]any); !object {
		return []Fault{fault("", "type", "must be object")}
	}
	faults := c.numbers(value, nil, nil)
	if len(faults) == 0 {
		faults = c.violations(value, c.schema.Validate(value))
	}
	return settled(faults)
}

// What a number of a draft may be. Beyond it no reader agrees with another, and the validator's exact arithmetic would
// cost without bound.
const (
	maxNumberBytes    = 400
	maxNumberExponent = 400
)

// numbers finds the numbers that are too long or too large to be compared.
func (c *Contract) numbers(v any, path []string, faults []Fault) []Fault {
	switch v := v.(type) {
	case map[string]any:
		for name, below := range v {
			faults = c.numbers(below, append(path, name), faults)
		}
	case []any:
		for i, below := range v {
			faults = c.numbers(below, append(path, strconv.Itoa(i)), faults)
		}
	case json.Number:
		if !fitsDouble(string(v)) {
			faults = append(faults, fault(pointer(path, c.shown), "number_range", "must be a number that fits a double"))
		}
	}
	return faults
}

func fitsDouble(number string) bool {
	if len(number) > maxNumberBytes {
		return false
	}
	i := strings.IndexAny(number, "eE")
	if i < 0 {
		return true
	}
	exponent, err := strconv.Atoi(number[i+1:])
	return err == nil && -maxNumberExponent <= exponent && exponent <= maxNumberExponent
}
