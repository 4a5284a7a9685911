package chart

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"
)

// readme returns the chart's README: a template, followed by a table of all values with the comments of values.yaml.
func (c *Chart) readme() (string, error) {
	head, err := os.ReadFile(filepath.Join(c.Path(), "README.md.tmpl"))
	if err != nil {
		return "", err
	}
	values, err := os.ReadFile(filepath.Join(c.Path(), "values.yaml"))
	if err != nil {
		return "", err
	}
	schema, err := os.ReadFile(filepath.Join(c.Path(), "values.schema.json"))
	if err != nil {
		return "", err
	}
	var described property
	if err := json.Unmarshal(schema, &described); err != nil {
		return "", fmt.Errorf("values.schema.json: %w", err)
	}
	table, err := table(values, described)
	if err != nil {
		return "", fmt.Errorf("values.yaml: %w", err)
	}
	return string(head) + table, nil
}

// table describes every value: scalars, lists, and mappings without fields of their own.
func table(values []byte, schema property) (string, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(values, &doc); err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString("| value | default | meaning |\n|---|---|---|\n")
	if err := rows(&b, "", doc.Content[0], schema); err != nil {
		return "", err
	}
	return b.String(), nil
}

// property is a value's part of the schema.
type property struct {
	Description string
	Properties  map[string]property
}

func rows(b *strings.Builder, prefix string, node *yaml.Node, schema property) error {
	for i := 0; i < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		name := prefix + key.Value
		described, ok := schema.Properties[key.Value]
		if !ok {
			return fmt.Errorf("%s: values.schema.json has no such value", name)
		}
		meaning := comment(key.HeadComment)
		if value.Kind == yaml.MappingNode && len(value.Content) > 0 && !leaf(name) {
			if meaning != "" {
				fmt.Fprintf(b, "| `%s` | | %s |\n", name, meaning)
			}
			if err := rows(b, name+".", value, described); err != nil {
				return err
			}
			continue
		}
		if meaning == "" {
			meaning = described.Description
		}
		text, err := inline(value)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		fmt.Fprintf(b, "| `%s` | `%s` | %s |\n", name, text, meaning)
	}
	return nil
}

// leaf reports whether a mapping is a single value, of a Kubernetes type.
func leaf(name string) bool {
	return strings.HasSuffix(name, ".resources") || strings.HasSuffix(name, ".nodeSelector") || strings.HasSuffix(name, ".labels")
}

// comment returns the last paragraph above a key: earlier paragraphs describe several values.
func comment(text string) string {
	paragraphs := strings.Split(strings.TrimSpace(text), "\n\n")
	var words []string
	for line := range strings.Lines(paragraphs[len(paragraphs)-1]) {
		words = append(words, strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "#")))
	}
	return strings.Join(words, " ")
}

// inline writes a value on one line.
func inline(node *yaml.Node) (string, error) {
	flat := *node
	var flow func(*yaml.Node)
	flow = func(n *yaml.Node) {
		n.HeadComment, n.LineComment, n.FootComment = "", "", ""
		if n.Kind != yaml.ScalarNode {
			n.Style = yaml.FlowStyle
		}
		for _, c := range n.Content {
			flow(c)
		}
	}
	flow(&flat)
	text, err := yaml.Marshal(&flat)
	return strings.Join(strings.Fields(string(text)), " "), err
}
