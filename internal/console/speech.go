package console

import (
	"encoding/json"
	"fmt"
	"html/template"
	"net/url"
	"sort"
	"strings"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/lang"
)

// speech says things in one language.
type speech struct {
	lang string
	base string // the path under which people reach this instance
	css  string // version of the style sheet
}

// funcs are what the templates can call.
func (s speech) funcs() template.FuncMap {
	return template.FuncMap{
		"t": s.text, "word": s.word, "n": s.count, "said": s.said, "lang": func() string { return s.lang },
		"path": s.path, "style": func() string { return s.path("/console/style.css") + "?v=" + s.css },
		"when": func(t any) string { return when(instantOf(t)) }, "machine": func(t any) string { return instantOf(t).Format(time.RFC3339) },
		"within": s.within, "ago": s.relative, "short": short,
		"reveal": s.reveal, "tree": func(b any) node { return tree(bytesOf(b)) }, "data": s.data, "list": func(all []string) string { return strings.Join(all, ", ") },
		"tail": tail, "seconds": func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000") },
		"soon": func(t, now time.Time) bool { return t.Sub(now) < time.Hour }, "add": func(a, b int) int { return a + b },
		"pair": func(t any, now time.Time) []time.Time { return []time.Time{instantOf(t), now} },
		"text": func(b json.RawMessage) string { return string(b) }, "bytes": func(s string) []byte { return []byte(s) },
		"navigation": func() []entry { return navigation }, "verdicts": func() []holdpoint.Verdict { return verdicts },
	}
}

func (s speech) text(key string, args ...any) string { return lang.Text(s.lang, key, args...) }

// word says one of the product's fixed names. A name without a text is shown as it is.
func (s speech) word(group string, name any) string {
	key := group + "." + fmt.Sprint(name)
	if t := s.text(key); t != key {
		return t
	}
	return fmt.Sprint(name)
}

// count says a number of things.
func (s speech) count(key string, n int) string {
	if n == 1 {
		return s.text(key+".one", n)
	}
	return s.text(key+".many", n)
}

// sentence is a sentence in the language that it is said in.
type sentence struct{ Text, Lang string }

// said translates a sentence that a lower level said in English.
func (s speech) said(english string) sentence {
	text, in := lang.Said(s.lang, english)
	return sentence{text, in}
}

// path gives the address of one of this instance's pages; every further part is one escaped element.
func (s speech) path(first string, parts ...string) string {
	out := s.base + first
	for _, p := range parts {
		out += "/" + url.PathEscape(p)
	}
	return out
}

// reveal is the function of that name with the marks said in words.
func (s speech) reveal(text string) []span {
	spans := reveal(text)
	for i, x := range spans {
		if x.Mark != "" {
			spans[i].Text = s.text("mark."+x.Mark, x.Text)
		}
	}
	return spans
}

// within says how long something lasts; relative says when it is, seen from now.
func (s speech) within(d any) string {
	var length time.Duration
	switch x := d.(type) {
	case holdpoint.Duration:
		length = time.Duration(x)
	case time.Duration:
		length = x
	}
	switch {
	case length >= 48*time.Hour:
		return s.count("unit.days", int(length/(24*time.Hour)))
	case length >= 2*time.Hour:
		return s.count("unit.hours", int(length/time.Hour))
	case length >= 2*time.Minute:
		return s.count("unit.minutes", int(length/time.Minute))
	}
	return s.count("unit.seconds", int(length/time.Second))
}

func (s speech) relative(t, now time.Time) string {
	switch d := t.Sub(now); {
	case d >= time.Second:
		return s.text("time.in", s.within(d))
	case d <= -time.Second:
		return s.text("time.ago", s.within(-d))
	}
	return s.text("time.now")
}

// data lists an event's data by name.
func (s speech) data(m map[string]any) []string {
	out := make([]string, 0, len(m))
	for k, v := range m {
		text, isText := v.(string)
		if !isText {
			b, err := json.Marshal(v)
			if err != nil {
				continue
			}
			text = string(b)
		}
		out = append(out, k+"="+text)
	}
	sort.Strings(out)
	return out
}

func when(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") }

// instantOf takes a time or a pointer to one.
func instantOf(t any) time.Time {
	switch x := t.(type) {
	case time.Time:
		return x.UTC()
	case *time.Time:
		if x != nil {
			return x.UTC()
		}
	}
	return time.Time{}
}

func bytesOf(b any) []byte {
	switch x := b.(type) {
	case []byte:
		return x
	case json.RawMessage:
		return x
	}
	return nil
}

// short is the beginning of a hash, enough to compare by eye.
func short(hash string) string {
	if len(hash) > 12 {
		return hash[:12]
	}
	return hash
}

// liveLink gives an address that may be a link: plain ASCII, http or https, no name before the host that could pass for
// it. Anything else is "" and stays text.
func liveLink(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.User != nil || u.Host == "" || (u.Scheme != "https" && u.Scheme != "http") || strings.Contains(u.Host, "xn--") {
		return ""
	}
	for _, c := range address {
		if c <= ' ' || c > '~' || c == '\\' {
			return ""
		}
	}
	return address
}

// tail is the end of an id. Ids begin with the time, so their ends tell them apart.
func tail(id string) string { return "…" + id[max(0, len(id)-8):] }

// entry is one page of the navigation.
type entry struct{ Name, Path string }

var navigation = []entry{{"inbox", "/console"}, {"runs", "/console/runs"}, {"unknown", "/console/unknown"}, {"switches", "/console/switches"},
	{"connectors", "/console/connectors"}, {"people", "/console/people"}, {"policy", "/console/policy"}}

// verdicts are what an operator can record about an unknown effect.
var verdicts = []holdpoint.Verdict{holdpoint.VerdictSent, holdpoint.VerdictNotSent, holdpoint.VerdictAbandon}
