package main

import "strings"

// nodeProblems are problems, each with the nodes that report it, in the order of the first report.
type nodeProblems struct {
	texts []string
	nodes map[string][]string // by text
}

func (c *nodeProblems) add(node, text string) {
	if c.nodes == nil {
		c.nodes = map[string][]string{}
	}
	if c.nodes[text] == nil {
		c.texts = append(c.texts, text)
	}
	c.nodes[text] = append(c.nodes[text], node)
}

func (c *nodeProblems) lines() (out []string) {
	for _, text := range c.texts {
		out = append(out, strings.Join(c.nodes[text], ", ")+": "+text)
	}
	return out
}
