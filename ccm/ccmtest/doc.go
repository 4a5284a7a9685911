// Package ccmtest builds the objects that the tests of the packages of ccm use.
package ccmtest
