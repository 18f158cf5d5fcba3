package console

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
)

// maxShown bounds the content that one card renders. What is longer is cut, and then nobody can approve it there: the
// page never asks for a yes to something that it does not show.
const maxShown = 256 << 10

// maxNested bounds how deep a document is drawn as a list; what is deeper is shown as JSON text.
const maxNested = 6

// node is one value of a JSON document in the order of its bytes, numbers as they are written.
type node struct {
	Name  string
	Kind  string // object, list, text, literal (number, true, false, null) or raw
	Text  string
	Items []node
	Odd   bool // a text that reads like a number, true, false, null or nothing
}

// tree reads a JSON document for display. What is no JSON is one raw node.
func tree(document []byte) node {
	d := json.NewDecoder(bytes.NewReader(document))
	d.UseNumber()
	n, err := value(d, document, 0)
	if err == nil {
		if _, err = d.Token(); errors.Is(err, io.EOF) {
			return n
		}
	}
	return node{Kind: "raw", Text: string(document)}
}

func value(d *json.Decoder, document []byte, depth int) (node, error) {
	start := d.InputOffset()
	t, err := d.Token()
	if err != nil {
		return node{}, err
	}
	switch x := t.(type) {
	case json.Delim:
		if depth >= maxNested {
			return rest(d, document, start)
		}
		n := node{Kind: "list"}
		if x == '{' {
			n.Kind = "object"
		}
		for d.More() {
			name := ""
			if n.Kind == "object" {
				key, err := d.Token()
				if err != nil {
					return n, err
				}
				name, _ = key.(string)
			}
			item, err := value(d, document, depth+1)
			if err != nil {
				return n, err
			}
			item.Name = name
			n.Items = append(n.Items, item)
		}
		_, err := d.Token()
		return n, err
	case string:
		return node{Kind: "text", Text: x, Odd: literal(x)}, nil
	case json.Number:
		return node{Kind: "literal", Text: x.String()}, nil
	case bool:
		if x {
			return node{Kind: "literal", Text: "true"}, nil
		}
		return node{Kind: "literal", Text: "false"}, nil
	}
	return node{Kind: "literal", Text: "null"}, nil
}

// rest reads to the end of an object or list that has begun and gives its bytes.
func rest(d *json.Decoder, document []byte, start int64) (node, error) {
	for open := 1; open > 0; {
		t, err := d.Token()
		if err != nil {
			return node{}, err
		}
		if x, ok := t.(json.Delim); ok {
			if x == '{' || x == '[' {
				open++
			} else {
				open--
			}
		}
	}
	return node{Kind: "raw", Text: strings.TrimLeft(string(document[start:d.InputOffset()]), ":, \t\r\n")}, nil
}

// literal reports whether a text would be taken for another kind of value if it stood without quotes.
func literal(s string) bool {
	t := strings.TrimSpace(s)
	return t == "" || t == "[]" || t == "{}" || json.Valid([]byte(t)) && t[0] != '"' && t[0] != '{' && t[0] != '['
}
