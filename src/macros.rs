/// Adds the methods `get_ref`, `get_mut` and `into_inner` to the service of a layer. They return the inner service.
macro_rules! inner_service {
    () => {
        /// Returns a reference to the inner service.
        pub fn get_ref(&self) -> &S {
            &self.inner
        }

        /// Returns a mutable reference to the inner service.
        pub fn get_mut(&mut self) -> &mut S {
            &mut self.inner
        }

        /// Returns the inner service.
        pub fn into_inner(self) -> S {
            self.inner
        }
    };
}

/// Defines methods in place of those of a feature that is not enabled. Their bound is never met, so that the compiler
/// rejects a call with the message and the note, which name the feature.
macro_rules! without_feature {
    ($feature:literal, $message:literal, $note:literal, $type:ident { $($method:ident($($arg:ident),*))* }) => {
        #[cfg(not(feature = $feature))]
        const _: () = {
            #[diagnostic::on_unimplemented(message = $message, label = "the feature is not enabled", note = $note)]
            pub trait Enabled {}
            impl $type {
                $(
                    #[doc(hidden)]
                    pub fn $method<$($arg),*>(self $(, _: $arg)*) -> Self where for<'a> Self: Enabled {
                        self
                    }
                )*
            }
        };
    };
}

/// Defines the type of fields in a file that exist only with a feature. If it is not enabled, the error names it.
#[cfg(feature = "serde")]
macro_rules! field_of_feature {
    ($feature:literal, $name:ident) => {
        #[cfg(not(feature = $feature))]
        #[derive(Debug, Clone, Copy, Default, PartialEq)]
        struct $name;

        #[cfg(not(feature = $feature))]
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
                let message = concat!("this field needs the feature `", $feature, "` of tower-outbound");
                Err(serde::de::Error::custom(message))
            }
        }
    };
}
