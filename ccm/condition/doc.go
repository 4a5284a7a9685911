// Package condition has the names of the conditions that several kinds have in common, and the form of lists in their
// messages: the first ten names and the number of the others.
package condition
