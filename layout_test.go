package holdpoint_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/holdpoint/holdpoint"

// testOnly marks packages that only tests may import.
const testOnly = -1

// levels is the layout: a package imports only packages of a lower level, or its own parent on the same one. A new
// package starts with a line here.
var levels = map[string]int{
	"":                                0,
	"internal/egress":                 0,
	"internal/killpoint":              0,
	"internal/lanes":                  0,
	"internal/lang":                   1,
	"internal/payload":                1,
	"internal/policy":                 1,
	"internal/evidence":               1,
	"internal/auth":                   1,
	"internal/notify":                 1,
	"internal/store":                  1,
	"connector":                       1,
	"connector/httpcall":              1,
	"connector/mirror":                1,
	"client":                          1,
	"internal/store/sqlstore":         2,
	"internal/engine":                 2,
	"internal/httpserver":             2,
	"internal/dispatch":               3,
	"internal/api":                    3,
	"internal/console":                3,
	"app":                             4,
	"internal/demo":                   5,
	"cmd/holdpoint":                   6,
	"internal/testenv":                testOnly,
	"internal/simtest":                testOnly,
	"internal/store/storetest":        testOnly,
	"internal/store/storetest/linear": testOnly,
	"internal/store/faultstore":       testOnly,
	"connector/connectortest":         testOnly,
	"e2e":                             testOnly,
}

// standardOnly lists the packages that import the standard library and nothing else.
var standardOnly = map[string]bool{"": true, "internal/egress": true, "internal/lanes": true}

// Limits of a file that is not a test and not generated. Files rarely pass longFile; none passes longestFile.
const (
	longFile    = 600
	longestFile = 800
	oneLongFile = 20 // among so many
)

type listedPackage struct {
	ImportPath   string
	Dir          string
	GoFiles      []string
	TestGoFiles  []string
	XTestGoFiles []string
	Imports      []string
}

// name returns the package's path inside the module.
func (p listedPackage) name() string { return inModule(p.ImportPath) }

func inModule(path string) string { return strings.TrimPrefix(strings.TrimPrefix(path, module), "/") }

func isOurs(path string) bool { return path == module || strings.HasPrefix(path, module+"/") }

// isStandard reports whether an import path is the standard library's: its first element has no dot.
func isStandard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

func listPackages(t *testing.T) []listedPackage {
	t.Helper()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json", "./...")
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())
	var packages []listedPackage
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listedPackage
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		packages = append(packages, p)
	}
	require.NotEmpty(t, packages)
	return packages
}

// mayImport reports whether a package on the layout may import another one.
func mayImport(from, to string) bool {
	switch {
	case levels[from] == testOnly:
		return true
	case levels[to] == testOnly:
		return false
	case levels[to] == levels[from]:
		return strings.HasPrefix(from, to+"/")
	default:
		return levels[to] < levels[from]
	}
}

func TestLayoutImportsPointDown(t *testing.T) {
	for _, p := range listPackages(t) {
		from := p.name()
		if _, known := levels[from]; !known {
			t.Errorf("package %q has no level; give it one in layout_test.go", from)
			continue
		}
		for _, path := range p.Imports {
			switch {
			case isOurs(path):
				to := inModule(path)
				if _, known := levels[to]; known && !mayImport(from, to) {
					t.Errorf("%q (level %d) imports %q (level %d)", from, levels[from], to, levels[to])
				}
			case standardOnly[from] && !isStandard(path):
				t.Errorf("%q imports %s; it may import the standard library only", from, path)
			}
		}
	}
}

func TestLayoutRules(t *testing.T) {
	for _, c := range []struct {
		from, to string
		may      bool
	}{
		{"internal/engine", "internal/store", true},
		{"internal/store/sqlstore", "internal/store", true},
		{"connector/httpcall", "connector", true},
		{"connector", "connector/httpcall", false},
		{"internal/payload", "internal/policy", false},
		{"internal/store", "internal/engine", false},
		{"internal/engine", "internal/store/sqlstore", false},
		{"internal/engine", "internal/testenv", false},
		{"internal/store/storetest", "internal/testenv", true},
		{"internal/payload", "", true},
		{"", "internal/egress", false},
	} {
		require.Equal(t, c.may, mayImport(c.from, c.to), "%q imports %q", c.from, c.to)
	}
}

func TestLayoutFilesStayShort(t *testing.T) {
	files, long := 0, []string{}
	for _, p := range listPackages(t) {
		for _, name := range p.GoFiles {
			path := filepath.Join(p.Dir, name)
			body, err := os.ReadFile(path)
			require.NoError(t, err)
			if bytes.HasPrefix(body, []byte("// Code generated ")) {
				continue
			}
			files++
			lines := bytes.Count(body, []byte("\n"))
			if lines > longestFile {
				t.Errorf("%s has %d lines; split it below %d", filepath.Join(p.name(), name), lines, longestFile)
			}
			if lines > longFile {
				long = append(long, filepath.Join(p.name(), name))
			}
		}
	}
	require.LessOrEqual(t, len(long), 1+files/oneLongFile, "files above %d lines are to stay rare: %v", longFile, long)
}

// TestLayoutNothingIsSkipped holds that a green run has run everything: no test skips itself for want of a database or
// a browser. Fuzz targets and rapid properties may skip an input.
func TestLayoutNothingIsSkipped(t *testing.T) {
	for _, p := range listPackages(t) {
		names := append(append([]string{}, p.TestGoFiles...), p.XTestGoFiles...)
		if levels[p.name()] == testOnly {
			names = append(names, p.GoFiles...)
		}
		for _, name := range names {
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			require.NoError(t, err)
			for _, pos := range skips(file) {
				t.Errorf("%s/%s:%d skips a test", p.name(), name, set.Position(pos).Line)
			}
		}
	}
}

// skips returns where a file calls Skip, Skipf or SkipNow outside fuzz targets and rapid properties.
func skips(file *ast.File) (found []token.Pos) {
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			return !strings.HasPrefix(n.Name.Name, "Fuzz") && !takesRapid(n.Type)
		case *ast.FuncLit:
			return !takesRapid(n.Type)
		case *ast.CallExpr:
			if s, ok := n.Fun.(*ast.SelectorExpr); ok {
				switch s.Sel.Name {
				case "Skip", "Skipf", "SkipNow":
					found = append(found, n.Pos())
				}
			}
		}
		return true
	})
	return found
}

// takesRapid reports whether a parameter is a *rapid.T.
func takesRapid(f *ast.FuncType) bool {
	for _, param := range f.Params.List {
		if star, ok := param.Type.(*ast.StarExpr); ok {
			if s, ok := star.X.(*ast.SelectorExpr); ok && s.Sel.Name == "T" {
				if pkg, ok := s.X.(*ast.Ident); ok && pkg.Name == "rapid" {
					return true
				}
			}
		}
	}
	return false
}

func TestLayoutFindsSkips(t *testing.T) {
	const source = `package p
		func TestA(t *testing.T) { t.Skip("no database") }
		func TestB(t *testing.T) { if testing.Short() { t.SkipNow() } }
		func FuzzC(f *testing.F) { f.Fuzz(func(t *testing.T, b []byte) { t.Skip() }) }
		func TestD(t *testing.T) { rapid.Check(t, func(t *rapid.T) { t.Skip() }) }
`
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "p_test.go", source, parser.SkipObjectResolution)
	require.NoError(t, err)
	var lines []int
	for _, pos := range skips(file) {
		lines = append(lines, set.Position(pos).Line)
	}
	require.Equal(t, []int{2, 3}, lines)
}
