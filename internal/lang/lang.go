// Package lang holds what Holdpoint says to people, one catalogue per language. English is complete; a text missing in
// another language is a test failure, never a gap on a page.
package lang

import (
	"cmp"
	"embed"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

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
		if i > 0 { // inside the sentence a verb is not a beginning
			r, n := utf8.DecodeRuneInString(parts[i])
			parts[i] = string(unicode.ToLower(r)) + parts[i][n:]
		}
	}
	return strings.Join(parts, Text(language, "sentence.join"))
}

// said finds the texts under "said.", which lower levels say in English, by what they say.
var said = sayings()

type saying struct {
	key     string
	pattern *regexp.Regexp
}

func sayings() []saying {
	var all []saying
	for key, text := range catalogues["en"] {
		if !strings.HasPrefix(key, "said.") {
			continue
		}
		pattern := verb.ReplaceAllString(regexp.QuoteMeta(text), "(.+)")
		all = append(all, saying{key, regexp.MustCompile("^" + pattern + "$")})
	}
	// The longest pattern first: the most particular one answers.
	slices.SortFunc(all, func(a, b saying) int {
		return cmp.Or(len(b.pattern.String())-len(a.pattern.String()), strings.Compare(a.key, b.key))
	})
	return all
}

// verb is an argument as QuoteMeta leaves it.
var verb = regexp.MustCompile(`%\\\[1\\\][sd]`)

// Said gives what a lower level said in English in another language, and the language of the answer: a sentence that no
// catalogue knows stays English.
func Said(language, english string) (text, in string) {
	if language == "en" || english == "" {
		return english, "en"
	}
	for _, s := range said {
		if m := s.pattern.FindStringSubmatch(english); m != nil {
			if _, ok := catalogues[language][s.key]; ok {
				args := make([]any, len(m)-1)
				for i, a := range m[1:] {
					args[i] = a
				}
				return Text(language, s.key, args...), language
			}
		}
	}
	return english, "en"
}

// Keys lists the keys of a catalogue in order.
func Keys(language string) []string { return slices.Sorted(maps.Keys(catalogues[language])) }
