// Package lang holds what Holdpoint says to people, one catalogue per language. English is complete; a text missing in
// another language is a test failure, never a gap on a page.
package lang

import (
	"embed"
	"encoding/json"
	"fmt"
	"strings"

	"golang.org/x/text/language"
)

//go:embed *.json
var files embed.FS

// Languages are the supported languages, the default first.
var Languages = []string{"en", "de"}

var (
	catalogues = load()
	matcher    = language.NewMatcher([]language.Tag{language.English, language.German})
)

func load() map[string]map[string]string {
	all := map[string]map[string]string{}
	for _, l := range Languages {
		raw, err := files.ReadFile(l + ".json")
		if err != nil {
			panic(err)
		}
		var m map[string]string
		if err := json.Unmarshal(raw, &m); err != nil {
			panic(fmt.Sprintf("lang: %s.json: %v", l, err))
		}
		all[l] = m
	}
	return all
}

// Choose picks a language: the person's own, else the best match of an Accept-Language header, else English.
func Choose(person, accept string) string {
	if _, ok := catalogues[person]; ok {
		return person
	}
	_, i := language.MatchStrings(matcher, accept)
	return Languages[i]
}

// Text gives a text of a catalogue with its arguments put in; unknown languages read English. Arguments are indexed from
// one in the texts (%[1]s), so that languages may order them as they like. A key without a text is returned as it is.
func Text(language, key string, args ...any) string {
	t, ok := catalogues[language][key]
	if !ok {
		if t, ok = catalogues["en"][key]; !ok {
			return key
		}
	}
	if len(args) == 0 {
		return t
	}
	// %[1]s … leaves unused arguments unreported only if the last verb is explicit; cut the report off.
	s := fmt.Sprintf(t, args...)
	if i := strings.Index(s, "%!(EXTRA"); i >= 0 {
		s = s[:i]
	}
	return s
}

// Item is one effect as a sentence needs it.
type Item struct{ Type, Connector, Target string }

// Sentence says in one sentence what a release would do, built from the stored effects, never from a model's words.
func Sentence(language string, items []Item) string {
	if len(items) == 0 {
		return Text(language, "sentence.none")
	}
	type group struct {
		key, name string
		targets   []string
	}
	var groups []*group
	for _, it := range items {
		key, name := "sentence.write", it.Type
		switch {
		case strings.HasPrefix(it.Type, "email."):
			key, name = "sentence.email", ""
		case strings.HasPrefix(it.Type, "refund"), strings.HasPrefix(it.Type, "payment."):
			key = "sentence.money"
		}
		var g *group
		for _, x := range groups {
			if x.key == key && x.name == name {
				g = x
			}
		}
		if g == nil {
			g = &group{key: key, name: name}
			groups = append(groups, g)
		}
		g.targets = append(g.targets, it.Target)
	}
	parts := make([]string, len(groups))
	for i, g := range groups {
		to := g.targets[0]
		if len(g.targets) > 1 {
			to = Text(language, "sentence.and_more", to, len(g.targets)-1)
		}
		key := g.key + ".one"
		if len(g.targets) > 1 {
			key = g.key + ".many"
		}
		parts[i] = Text(language, key, len(g.targets), to, g.name)
	}
	return strings.Join(parts, Text(language, "sentence.join"))
}
