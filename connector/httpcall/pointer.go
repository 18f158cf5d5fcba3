package httpcall

import (
	"bytes"
	"encoding/json"
	"io"
	"strconv"
	"strings"
	"unicode"
)

// maxProviderID bounds what a provider may make us store as its id, in bytes.
const maxProviderID = 255

// decode reads body as exactly one JSON value, keeping numbers as written. It gives nil if body is anything else.
func decode(body []byte) any {
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	var v any
	if dec.Decode(&v) != nil {
		return nil
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil
	}
	return v
}

// at resolves a JSON pointer (RFC 6901) in a decoded value.
func at(v any, pointer string) (any, bool) {
	if pointer == "" {
		return v, true
	}
	if pointer[0] != '/' {
		return nil, false
	}
	for token := range strings.SplitSeq(pointer[1:], "/") {
		token = strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
		switch node := v.(type) {
		case map[string]any:
			next, ok := node[token]
			if !ok {
				return nil, false
			}
			v = next
		case []any:
			i, err := strconv.Atoi(token)
			if err != nil || i < 0 || i >= len(node) || strconv.Itoa(i) != token {
				return nil, false
			}
			v = node[i]
		default:
			return nil, false
		}
	}
	return v, true
}

// textAt gives the string or number at pointer, "" if there is none.
func textAt(v any, pointer string) string {
	got, ok := at(v, pointer)
	if !ok {
		return ""
	}
	switch t := got.(type) {
	case string:
		return t
	case json.Number:
		return t.String()
	}
	return ""
}

// providerID gives the provider's id at pointer if it is fit to be stored and shown.
func providerID(v any, pointer string) string { return fitID(textAt(v, pointer)) }

// fitID gives id if it is fit to be stored and shown: short and printable. Otherwise it gives "".
func fitID(id string) string {
	if len(id) > maxProviderID || strings.ContainsFunc(id, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return ""
	}
	return id
}
