package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf16"
)

// answer prints v as JSON, or what human writes for people. Content is hostile: whatever could steer a terminal or
// mislead a reader is shown as its escape, in both forms.
func (p *program) answer(v any, human func(w io.Writer)) error {
	var b bytes.Buffer
	if p.json {
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		if err := enc.Encode(v); err != nil {
			return err
		}
	} else {
		human(&b)
	}
	_, err := io.WriteString(p.out, visible(b.String()))
	return err
}

// visible replaces control, format and private characters, and everything that is not UTF-8, by \uXXXX. Inside a JSON
// string, where alone such characters can stand, that is the same string.
func visible(s string) string {
	plain := func(r rune) bool {
		return r == '\n' || r == '\t' || !unicode.In(r, unicode.C, unicode.Zl, unicode.Zp) && r != unicode.ReplacementChar
	}
	if strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		switch {
		case plain(r):
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// table writes rows under a header, aligned.
func table(w io.Writer, header string, rows [][]string) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, strings.ReplaceAll(header, " | ", "\t"))
	for _, row := range rows {
		for i, cell := range row {
			row[i] = oneLine(cell)
		}
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	_ = t.Flush()
}

// pairs writes names with their values, aligned; pairs with an empty value are left out.
func pairs(w io.Writer, nameValue ...string) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for i := 0; i+1 < len(nameValue); i += 2 {
		if nameValue[i+1] != "" {
			fmt.Fprintf(t, "  %s\t%s\n", nameValue[i], oneLine(nameValue[i+1]))
		}
	}
	_ = t.Flush()
}

// oneLine keeps a value inside its cell.
func oneLine(s string) string {
	if s == "" {
		return "-"
	}
	return strings.NewReplacer("\n", `\n`, "\t", `\t`, "\r", `\r`, "\v", `\v`, "\f", `\f`).Replace(s)
}

// short gives the first twelve characters of a hash.
func short(hash string) string {
	if len(hash) > 12 {
		return hash[:12]
	}
	return hash
}

// at writes an instant.
func at(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05Z")
}

// atOf writes an instant that may not be known.
func atOf(t *time.Time) string {
	if t == nil {
		return ""
	}
	return at(*t)
}

// count writes n with a word: "1 run", "3 runs".
func count(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}

// indented writes JSON or text below a line, so that it cannot be taken for Holdpoint's own words.
func indented(w io.Writer, raw []byte) {
	var b bytes.Buffer
	if json.Indent(&b, raw, "", "  ") != nil {
		b.Reset()
		b.Write(raw)
	}
	for line := range strings.SplitSeq(strings.TrimRight(b.String(), "\n"), "\n") {
		fmt.Fprintln(w, "    "+line)
	}
}

// list gives a list that is written as [] in JSON when it is empty.
func list[T any](all []T) []T {
	if all == nil {
		return []T{}
	}
	return all
}
